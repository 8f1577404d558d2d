"""Writing a small file whole on a host, through the same frame as every command, so that it works where SFTP does not."""

from __future__ import annotations

from gpufleet.remote.command import Command

# The size is compared because a pipe that broke halfway leaves a file that looks whole. `sync FILE` is fsync in
# coreutils; where it is not known, everything is synced.
_PUT = """\
case $1 in
'~/'*) path=$HOME/${1#??} ;;
*) path=$1 ;;
esac
temporary=$path.gpufleet.$$
umask 077
if cat >"$temporary" && [ "$(wc -c <"$temporary")" -eq "$3" ] && chmod "$2" "$temporary"; then
sync "$temporary" 2>/dev/null || sync
mv -f "$temporary" "$path" && exit 0
fi
rm -f "$temporary"
echo "cannot write $path whole" >&2
exit 1
"""

SLOWEST_UPLOAD = 256 * 1024
"""Bytes a second below which an upload counts as stuck."""


def put_command(content: bytes, path: str, mode: int) -> Command:
    """Write `content` to `path`: a temporary file beside it, mode, fsync, rename. `~/` is the home directory."""
    return Command(
        argv=(path, f"{mode:04o}", str(len(content))),
        script=_PUT,
        stdin=content,
        timeout=60.0 + len(content) / SLOWEST_UPLOAD,
        mutates=True,
    )
