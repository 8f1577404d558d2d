"""One command as bytes for `/bin/sh -s`, and the two streams that come back as an answer.

Theory of operation. The exec request is always the constant text `exec /bin/sh -s`, which bash, fish and tcsh all
understand alike; everything else travels on standard input. The frame prints a begin line with a random marker
and the shell's process id on both streams, runs the command in a subshell, and prints an end line with the exit
status on both streams. So

- text of a login shell, a forced command or a banner stands before the begin line and is noise, never an answer;
- the end line and not the channel tells that the command ended, so signal death, a lost line and a child that
  keeps standard output open are three different things;
- the process id in the begin line is what a deadline ends.

Text is handed over by the shell's built-in `printf` and never by a here-document: bash writes those to a file,
which fails on a full disk and leaves secrets there. No program's argument list ever holds any of it.

With `become` the same body runs in a root shell, which prints a third line of its own. When that line is missing
and the end line is there, sudo refused and nothing has run: seen from our own marker, never from English text.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import NamedTuple

from gpufleet.redact import Secret
from gpufleet.remote.command import Command, quote, reveal
from gpufleet.remote.result import Exit
from gpufleet.remote.sudo import SudoFailure, classify

EXEC_REQUEST = "exec /bin/sh -s"
"""What the login shell is asked to run, for every command."""

_TAIL_WINDOW = 1 << 18
"""Bytes; more than one read of a channel gives."""

_HEAD = """\
LC_ALL=C
export LC_ALL
printf '%s %s\\n' '{marker}-{label}' "$$"
printf '%s %s\\n' '{marker}-{label}' "$$" >&2
"""

_COMMAND = """\
gpufleet_command() {{
{text}
}}
"""

_TAIL = """\
gpufleet_status=$?
printf '%s %s\\n' '{marker}-end' "$gpufleet_status"
printf '%s %s\\n' '{marker}-end' "$gpufleet_status" >&2
exit "$gpufleet_status"
"""

_NO_INPUT = "( gpufleet_command ) </dev/null\n"

# In one piece between braces: a shell reads all of it before it runs any, so that what follows on standard input is
# for the command alone.
OFFER_END = "} # end of the frame; files follow when they are asked for\n"
_OFFERING = """\
{{
gpufleet_want() {{ printf '%s %s %s %s\\n' '{marker}-want' "$1" "$2" "$3"; }}
{frame}""" + OFFER_END.replace("}", "}}", 1)

# A host without base64 must not hand the command an empty input: unknown is never empty.
_INPUT = """\
if command -v base64 >/dev/null 2>&1; then
printf '%s\\n' {encoded} | base64 -d 2>/dev/null | ( gpufleet_command )
else
echo 'base64: not found on this host' >&2
( exit 127 )
fi
"""

# Who is root already needs no sudo, and machines with a root login often have none.
_AS_ROOT = """\
if [ "$(id -u)" = 0 ]; then
printf '%s\\n' {body} | /bin/sh -s
else
{through_sudo}fi
"""

_SUDO = "printf '%s\\n' {body} | sudo -n /bin/sh -s\n"

# Asked first without a password, by the very command line that follows. Then the password alone, so that a wrong
# one costs one attempt: sudo would take the lines of the script for further ones. `-k`: a cached ticket would
# leave the password unread, and the root shell would run it.
_SUDO_ASKING = """\
if sudo -n /bin/sh -s </dev/null >/dev/null 2>&1; then
printf '%s\\n' {body} | sudo -n /bin/sh -s
elif printf '%s\\n' {password} | sudo -k -S -p '' /bin/sh -s >/dev/null; then
printf '%s\\n' {password} {body} | sudo -k -S -p '' /bin/sh -s
else
( exit 1 )
fi
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unframed:
    """What two streams say.

    Attributes:
        exit: the answer; None while, or because, the end line is missing.
        pid: the remote shell's process id, once the begin line was read.
        root_pid: that of the root shell, when the command ran through sudo.
        noise: whether the host prints text of its own on a login without a terminal.
        preamble: that text, for messages about hosts that never ran the frame.
    """

    exit: Exit | None
    pid: int | None
    root_pid: int | None = None
    noise: bool = False
    preamble: str = ""


def frame(command: Command, marker: str, *, sudo_password: Secret[str] | None = None) -> bytes:
    """The bytes for standard input of `/bin/sh -s`. `marker` is random and never used twice."""
    body = _COMMAND.format(text=command.wire().rstrip("\n")) + _invocation(command)
    head = _HEAD.format(marker=marker, label="begin")
    if command.become:
        inner = quote(_HEAD.format(marker=marker, label="root") + body)
        if sudo_password is None:
            through_sudo = _SUDO.format(body=inner)
        else:
            through_sudo = _SUDO_ASKING.format(body=inner, password=quote(reveal(sudo_password)))
        body = _AS_ROOT.format(body=inner, through_sudo=through_sudo)
    text = head + body + _TAIL.format(marker=marker)
    if command.files:
        text = _OFFERING.format(marker=marker, frame=text)
    return text.encode("utf-8", "surrogateescape")


def _invocation(command: Command) -> str:
    content = command.stdin.reveal() if isinstance(command.stdin, Secret) else command.stdin
    if command.files:
        return "( gpufleet_command )\n"
    if not content:
        return _NO_INPUT
    return _INPUT.format(encoded=quote(base64.encodebytes(content).decode("ascii").rstrip("\n")))


def unframe(stdout: bytes, stderr: bytes, marker: str, *, become: bool = False) -> Unframed:
    """The answer in what was read so far; also right for streams that were cut anywhere."""
    out, err = _Stream.of(stdout, marker), _Stream.of(stderr, marker)
    preamble = " ".join(part for part in (out.before, err.before) if part)
    code = out.code if out.code is not None else err.code
    started = out.pid if out.pid is not None else err.pid
    root_pid = out.root_pid if out.root_pid is not None else err.root_pid
    answer: Exit | None = None
    if code is not None:
        refusal: SudoFailure | None = None
        if become and root_pid is None:
            refusal = classify(err.content)
        answer = Exit(
            code=code,
            stdout=out.content,
            stderr=err.content,
            sudo_refused=refusal.value if refusal is not None else "",
        )
    return Unframed(exit=answer, pid=started, root_pid=root_pid, noise=bool(preamble), preamble=preamble)


def finished(stream: bytes | bytearray, marker: str) -> bool:
    """Whether the end line stands near the end of this stream, whole.

    Only the last part is searched, as this is asked after every chunk; whoever prints more than that behind the end
    line is waited for to the end of the stream.
    """
    place = stream.rfind(f"{marker}-end ".encode(), max(0, len(stream) - _TAIL_WINDOW))
    return place >= 0 and stream.find(b"\n", place) >= 0


@dataclass(frozen=True, slots=True)
class _Stream:
    before: str
    content: str
    pid: int | None
    root_pid: int | None
    code: int | None

    @classmethod
    def of(cls, raw: bytes, marker: str) -> _Stream:
        begin = _line(raw, f"{marker}-begin ")
        if begin is None:
            return cls(raw.decode("utf-8", "replace").strip(), "", None, None, None)
        rest = raw[begin.end :]
        root = _line(rest, f"{marker}-root ")
        if root is not None:
            rest = rest[root.end :]
        end = _line(rest, f"{marker}-end ")
        if end is not None:
            rest = rest[: end.start]
        # A forced command may pour both streams into one: then each line of ours stands there twice.
        for label in ("begin", "root"):
            while (again := _line(rest, f"{marker}-{label} ")) is not None:
                rest = rest[: again.start] + rest[again.end :]
        want = f"{marker}-want ".encode()
        if want in rest:
            rest = b"".join(line for line in rest.splitlines(keepends=True) if not line.startswith(want))
        return cls(
            before=raw[: begin.start].decode("utf-8", "replace").strip(),
            content=rest.decode("utf-8", "replace"),
            pid=begin.number,
            root_pid=root.number if root is not None else None,
            code=end.number if end is not None else None,
        )


class _Line(NamedTuple):
    """One of our own lines in a stream."""

    start: int
    end: int
    number: int


def _line(raw: bytes, prefix: str) -> _Line | None:
    """The first whole line of ours with this prefix and a number. No regular expressions: each would be used once."""
    start = raw.find(prefix.encode())
    newline = raw.find(b"\n", start) if start >= 0 else -1
    if newline < 0:
        return None
    digits = raw[start + len(prefix) : newline]
    return _Line(start, newline + 1, int(digits)) if digits.isdigit() else None
