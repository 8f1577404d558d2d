"""Ending what a command started on a host, after its deadline.

Closing an SSH channel ends nothing: the remote process runs on to its own end. sshd makes each command the leader
of a process group, so the group of the pid in the frame's begin line is everything the command started, unless it
left the group on purpose.
"""

from __future__ import annotations

from gpufleet.remote.command import Command

# A forced command may stand between sshd and our shell; then the group has another number than the shell. Groups 0
# and 1 are never signalled: to `kill`, -1 means every process there is.
_END = """\
group_of() {
line=$(cat "/proc/$1/stat" 2>/dev/null) || line=
line=${line##*) }
set -- "$1" $line
echo "${4:-$1}"
}
groups=
for pid in "$@"; do
group=$(group_of "$pid")
[ "$group" -gt 1 ] && groups="$groups $group"
done
left() {
for group in $groups; do
kill -0 "-$group" 2>/dev/null && return 0
done
return 1
}
send() {
for group in $groups; do
kill "-$1" "-$group" 2>/dev/null
done
}
send TERM
for second in 1 2 3; do
left || exit 0
sleep 1
done
send KILL
sleep 1
! left
"""


def end_command(pids: tuple[int, ...], *, become: bool) -> Command:
    """Ask the groups of these processes to end, then end them; exit status 0 when nothing of them is left."""
    return Command(
        argv=tuple(str(pid) for pid in pids), script=_END, timeout=15.0, mutates=True, become=become
    )
