"""What is sent to a host to pull an image, and when a pull counts as stuck.

A runtime that is not at a terminal says nothing of the bytes that came, so the disk is asked: what it holds changes
while layers arrive and while they are unpacked. Others write there as well: what counts is more than logs write, and no
less than a pull must bring to be through before its deadline. Docker with containerd's
image store (the default from 29 on) keeps images in containerd's directory, so that disk is asked as well. Where the
place of images is not known, or no output can be kept, only the deadline ends a pull.
"""

from __future__ import annotations

from gpufleet.deploy.commands import PULL_TIMEOUT, Dialect
from gpufleet.remote.command import Command

PULL_STALL = 300.0
"""Seconds in which a pull may add nothing to the disk."""

LEAST_KIB = 1024
SLOWEST_KIB = 48
"""A second. A pull that brings less takes longer than its deadline for all but the smallest images; logs write less."""

PULL = """
runtime=$1 image=$2 stall=$3 root=$4 least=$5
"$runtime" image inspect "$image" >/dev/null 2>&1 && exit 0
said=$HOME/.gpufleet/pull-$$
taken() {
  total=0
  for place in "$root" /var/lib/containerd; do
    for cell in $(df -Pk "$place" 2>/dev/null | tail -n 1 | tr -s ' ' | cut -d ' ' -f 3); do
      case $cell in *[!0-9]*) ;; *) total=$((total + cell)) ;; esac
    done
  done
  echo "$total"
}
watched=
if [ -n "$root" ]; then
  mkdir -p "$HOME/.gpufleet" 2>/dev/null && { : >"$said"; } 2>/dev/null && watched=yes
fi
if [ -z "$watched" ]; then
  "$runtime" pull -q "$image"
  exit $?
fi
"$runtime" pull -q "$image" >"$said" 2>&1 &
pull=$!
still=0 mark=$(taken) stuck=
while kill -0 "$pull" 2>/dev/null; do
  sleep 1
  still=$((still + 1))
  now=$(taken)
  if [ "$((now - mark))" -ge "$least" ] || [ "$((mark - now))" -ge "$least" ]; then mark=$now still=0; fi
  if [ "$still" -ge "$stall" ]; then
    stuck=yes
    kill "$pull"
    sleep 2
    kill -9 "$pull"
    break
  fi
done 2>/dev/null
wait "$pull" 2>/dev/null
status=$?
cat "$said" >&2
rm -f "$said"
if [ -n "$stuck" ]; then
  echo "the pull of $image brought nothing for $stall s" >&2
  exit 1
fi
exit "$status"
"""


def pull(dialect: Dialect, image: str, stall: float = PULL_STALL) -> Command:
    """Bring an image when it is not there; ended when nothing comes for `stall` seconds."""
    least = max(LEAST_KIB, round(stall * SLOWEST_KIB))
    words = (image, f"{max(1.0, stall):.0f}", dialect.store, str(least))
    return dialect.script(PULL, *words, mutates=True, timeout=PULL_TIMEOUT)
