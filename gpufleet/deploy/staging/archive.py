"""What is sent to a host to write an image into an archive, to take one from another host, and to load it.

An archive is a directory of its own in the store of images, as a revision of weights is one: `image.tar`, its size,
and a manifest with its SHA-256. It appears whole by one rename, is served by a giver like any other directory
(`staging.give`), and is removed when everybody has what they wanted. Docker and Podman write the same form (`save`),
in which the image keeps its id: a digest over its configuration, which names its layers by their content. A registry's
digest does not survive, so the id is what is compared, and what is run.
"""

from __future__ import annotations

from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.staging.commands import SLOWEST, STALL
from gpufleet.redact import Secret
from gpufleet.remote.command import Command

STORE = "~/.gpufleet/images"
"""Where archives are while they are needed."""

_COMMON = """
manifest=.gpufleet-manifest
partial=$final.partial
say() { printf '%s\\n' "$*" >&2; }
size_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
full() { say "$1 cannot be written to ${final%/*}: is its disk full?"; }
finish() {
  printf '%s\\n' "$size" >"$partial/size" && printf '%s  image.tar\\n' "$sum" >"$partial/$manifest" || {
    full "the archive"
    exit 1
  }
  sync "$partial/image.tar" 2>/dev/null || :
  mv "$partial" "$final"
}
"""

SAVE = (
    """
umask 022
runtime=$1 final=$2 reference=$3 id=$4
"""
    + _COMMON
    + """
if [ -f "$final/$manifest" ]; then exit 0; fi
rm -rf "$partial"
mkdir -p "$partial" 2>/dev/null || { full "$partial"; exit 1; }
found=$("$runtime" image inspect --format '{{.Id}}' "$reference" 2>/dev/null)
if [ "${found#sha256:}" != "${id#sha256:}" ]; then
  "$runtime" ps -q >/dev/null || exit 1
  say "$reference is ${found:-not there any more} on this host, not $id"
  rm -rf "$partial"
  exit 1
fi
if "$runtime" save "$reference" >"$partial/image.tar"; then :; else
  full "the archive"
  rm -rf "$partial"
  exit 1
fi
size=$(size_of "$partial/image.tar")
sum=$(sha256sum <"$partial/image.tar") || exit 1
sum=${sum%% *}
finish
"""
)

TAKE = (
    """
umask 022
final=$1 near=$2 giver=$3 stall=$4
"""
    + _COMMON
    + """
if [ -f "$final/$manifest" ]; then exit 0; fi
mkdir -p "$partial" 2>/dev/null || { full "$partial"; exit 1; }
ask() {
  printf 'url = "%s/%s"\\nnoproxy = "*"\\n' "$near" "$1" |
    curl -q -s -g -f --connect-timeout 10 --speed-limit 1 --speed-time "$stall" -K - 2>/dev/null
}
tries=0
while :; do
  size= sum=
  size=$(ask size) && sum=$(ask "$manifest")
  status=$?
  sum=${sum%% *}
  case $status-$size in
  0-|0-*[!0-9]*) ;;
  0-*) if [ "${#sum}" -eq 64 ]; then break; fi ;;
  28-*) tries=4 ;;
  esac
  tries=$((tries + 1))
  if [ "$tries" -ge 5 ]; then say "$giver does not give the image: it is not reached, or its giver did not start"; exit 1; fi
  sleep "$tries"
done
tries=0 got=0 bad=0
while :; do
  have=$(size_of "$partial/image.tar")
  if [ "$have" -gt "$size" ]; then rm -f "$partial/image.tar"; have=0; fi
  if [ "$have" -eq "$size" ]; then
    found=$(sha256sum <"$partial/image.tar") || { say "the archive cannot be read back"; exit 1; }
    if [ "${found%% *}" = "$sum" ]; then break; fi
    rm -f "$partial/image.tar"
    bad=$((bad + 1))
    if [ "$bad" -ge 2 ]; then say "the archive has SHA-256 ${found%% *}, and $giver tells $sum"; exit 1; fi
    got=0
    continue
  fi
  printf 'url = "%s/image.tar"\\nnoproxy = "*"\\n' "$near" |
    curl -q -s -g -f -C - -o "$partial/image.tar" --connect-timeout 10 --speed-limit 1 --speed-time "$stall" -K - 2>/dev/null
  status=$?
  case $status in
  0) continue ;;
  23) full "the archive"; exit 1 ;;
  28) say "no byte of the image from $giver for $stall s"; exit 1 ;;
  33) rm -f "$partial/image.tar" ;;
  esac
  now=$(size_of "$partial/image.tar")
  if [ "$now" -gt "$got" ]; then got=$now tries=0; continue; fi
  tries=$((tries + 1))
  if [ "$tries" -ge 5 ]; then say "the copy of the image from $giver broke off (curl status $status)"; exit 1; fi
  sleep "$tries"
done
finish
"""
)

LOAD = """
runtime=$1 final=$2 id=$3 owner=$4
have() { "$runtime" image inspect --format '{{.Id}}' "$id" >/dev/null 2>&1; }
mark=$final.loaded
if have; then exit 0; fi
printf '%s\\n' "$owner" >"$mark" || { echo "${mark%/*} cannot be written: is its disk full?" >&2; exit 1; }
said=$("$runtime" load 2>&1 <"$final/image.tar")
status=$?
if [ "$status" -ne 0 ]; then
  printf 'the image cannot be loaded: %s\\n' "$(printf '%s\\n' "$said" | tail -n 1)" >&2
  exit 1
fi
if have; then exit 0; fi
printf 'what was loaded is not %s (%s)' "$id" "$(printf '%s\\n' "$said" | tail -n 1)" >&2
echo ': containerd and the older image store of docker give one image two ids; use a registry, or one kind of store' >&2
exit 1
"""

UNLOAD = """
runtime=$1 final=$2 id=$3 owner=$4
mark=$final.loaded
if [ "$(cat "$mark" 2>/dev/null)" != "$owner" ]; then exit 0; fi
if "$runtime" image inspect --format '{{.Id}}' "$id" >/dev/null 2>&1; then
  users=$("$runtime" ps -aq --no-trunc --filter "ancestor=${id#sha256:}") || exit 1
  # Refused by a runtime that answers: somebody uses it, or gave it another name, so it is theirs now.
  [ -n "$users" ] || "$runtime" rmi "$id" >/dev/null 2>&1 || "$runtime" ps -q >/dev/null || exit 1
else
  # Not there, as far as a runtime says that answers; one that does not has said nothing.
  "$runtime" ps -q >/dev/null || exit 1
fi
rm -f "$mark"
"""

LOADED = """
runtime=$1 final=$2 id=$3 owner=$4
if [ "$(cat "$final.loaded" 2>/dev/null)" = "$owner" ]; then echo "ours"; else echo "nothing of ours"; fi
if "$runtime" image inspect --format '{{.Id}}' "$id" 2>/dev/null; then exit 0; fi
if "$runtime" ps -q >/dev/null; then echo absent; fi
exit 0
"""

DROP = """
rm -rf "$1" "$1.partial"
"""

THERE = """
if [ -f "$1/.gpufleet-manifest" ]; then
  echo complete
elif [ -e "$1" ] || [ -e "$1.partial" ]; then
  echo "partial 0"
else
  echo absent
fi
"""


def save(dialect: Dialect, final: str, reference: str, image: str, size: int) -> Command:
    """Write an image into an archive, when it still is the one that was seen."""
    return dialect.script(SAVE, final, reference, image, mutates=True, timeout=_patience(size))


def take(
    dialect: Dialect, final: str, near: Secret[str], giver: str, *, size: int, stall: float = STALL
) -> Command:
    """Copy an archive from another host: from the byte that is missing, compared by SHA-256."""
    return Command(
        argv=(final, near, giver, f"{max(1.0, stall):.0f}"),
        script=TAKE,
        mutates=True,
        timeout=_patience(size),
        become=dialect.root,
    )


def load(dialect: Dialect, final: str, image: str, owner: str, size: int) -> Command:
    """Load an archive, and see that the image in it is the one that is wanted."""
    return dialect.script(LOAD, final, image, owner, mutates=True, timeout=_patience(size))


def unload(dialect: Dialect, final: str, image: str, owner: str) -> Command:
    """Remove an image that this run loaded and nobody uses."""
    return dialect.script(UNLOAD, final, image, owner, mutates=True, timeout=300.0)


def loaded(dialect: Dialect, final: str, image: str, owner: str) -> Command:
    """Look whether the image is there, and whether something of ours is to be undone."""
    return dialect.script(LOADED, final, image, owner, mutates=False)


def drop(dialect: Dialect, final: str) -> Command:
    """Remove an archive, whole or not."""
    return Command(argv=(final,), script=DROP, mutates=True, timeout=300.0, become=dialect.root)


def there(dialect: Dialect, final: str) -> Command:
    """Look at an archive."""
    return Command(argv=(final,), script=THERE, mutates=False, become=dialect.root)


def _patience(size: int) -> float:
    return 600.0 + 3 * STALL + 2 * size / SLOWEST
