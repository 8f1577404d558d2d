"""What is sent to a host to look at its store: one revision in it, or everything that a plan needs to know.

`COMMON` is shared with the scripts that write (`staging.commands`): how a writer is known to be dead.
"""

from __future__ import annotations

from gpufleet.deploy.staging.patient import ANSWER_SECONDS, PATIENTLY
from gpufleet.remote.command import Command

COMMON = """
manifest=.gpufleet-manifest
say() { printf '%s\\n' "$*" >&2; }
born() { cut -d ' ' -f 22 "/proc/$1/stat" 2>/dev/null; }
alive() { [ -d "/proc/$1" ] || kill -0 "$1" 2>/dev/null; }
machine=$(uname -n)
dead_writer() {
  name= pid= since= rest=
  read -r name pid since rest 2>/dev/null <"$lease/holder" || return 1
  [ "$name" = "$machine" ] || return 1
  if [ -n "$pid" ] && alive "$pid" && [ "$(born "$pid")" = "$since" ]; then return 1; fi
  return 0
}
"""

LOOK = (
    """
final=$1 owner=$2
partial=$final.partial
lease=$final.lease
"""
    + COMMON
    + """
if [ -f "$final/$manifest" ]; then
  echo complete
elif [ -d "$partial" ]; then
  name= pid= since= rest=
  read -r name pid since rest 2>/dev/null <"$lease/holder"
  if [ -d "$lease" ] && [ "$rest" != "$owner" ] && ! dead_writer; then
    echo "other $rest"
  else
    echo "partial $(du -sk "$partial" | cut -f 1)"
  fi
else
  echo absent
fi
"""
)

SURVEY = (
    """
final=$1
case $final in
'~'/*) final=$HOME/${final#??} ;;
esac
store=${final%/*}
partial=$final.partial
lease=$final.lease
"""
    + COMMON
    + PATIENTLY
    + f"""
patiently {ANSWER_SECONDS} /dev/null ls -a "$store"
if [ "$?" -eq 124 ]; then
  say "$store does not answer for {ANSWER_SECONDS} s: is it a mount whose server is gone?"
  exit 1
fi
"""
    + """
echo "path $final"
if [ -f "$final/$manifest" ]; then echo "state complete"
elif [ -e "$final" ]; then echo "state foreign"
elif [ -d "$partial" ]; then echo "state partial $(du -sk "$partial" | cut -f 1)"
else echo "state absent"
fi
if [ -d "$lease" ] && ! dead_writer; then
  name= pid= since= rest=
  read -r name pid since rest 2>/dev/null <"$lease/holder"
  echo "writer $rest on $name"
fi
place=$store
while [ ! -d "$place" ]; do
  place=${place%/*}
  if [ -z "$place" ]; then place=/; fi
done
if [ -w "$place" ]; then echo "writable yes"; else echo "writable no"; fi
for program in curl sha256sum sha1sum stat df; do
  command -v "$program" >/dev/null 2>&1 || echo "lacks $program"
done
printf 'free '
df -Pk "$place" 2>/dev/null | tail -n 1
echo
"""
)


def look(final: str, owner: str, *, become: bool = False) -> Command:
    """Look at a revision: `complete`, `partial KIB`, `other WRITER`, `absent`."""
    return Command(argv=(final, owner), script=LOOK, mutates=False, become=become)


def survey(final: str) -> Command:
    """Ask what `HostStore` holds."""
    return Command(argv=(final,), script=SURVEY, mutates=False)
