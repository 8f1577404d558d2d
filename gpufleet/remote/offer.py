"""Files of this machine that a script on a host may ask for while it runs: each part when it is wanted, never whole.

Theory of operation. A command that offers files leaves its standard input open behind the frame. Its script asks by
`gpufleet_want NUMBER OFFSET COUNT`, a function that the frame defines: it prints a line with the frame's random
marker, so that nothing else on the host can ask. We answer with so many bytes of that file from that offset, or with
the end of the input when the file does not have them, and wait again. The script reads as many, so nothing stands
between two answers, whichever way a shell reads ahead; and a copy that was cut goes on at the byte that the host has.
Files that are not offered cannot be asked for. Memory is bounded by one piece, whatever the files' sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpufleet.remote.result import Exit

PIECE = 1 << 18
"""Bytes that are read from a file at once."""

STALL = 300.0
"""Seconds in which the far end takes no byte, after which it counts as stuck."""


@dataclass(slots=True)
class Offer:
    """What one command may ask for, and how far it was answered.

    Attributes:
        files: absolute paths here, asked for by their number.
        trouble: why a file could not be given, one line; empty when nothing went wrong.
    """

    files: tuple[str, ...]
    marker: str
    trouble: str = ""
    _read: int = field(default=0)

    def wanted(self, stdout: bytes | bytearray) -> tuple[int, int, int] | None:
        """The next question in what the script printed so far: file's number, offset and count; None for none."""
        prefix = f"{self.marker}-want ".encode()
        start = stdout.find(prefix, self._read)
        newline = stdout.find(b"\n", start) if start >= 0 else -1
        if newline < 0:
            # What was searched is not searched again, but for a question that is not whole yet.
            self._read = max(self._read, len(stdout) - len(prefix) if start < 0 else start)
            return None
        self._read = newline + 1
        words = bytes(stdout[start + len(prefix) : newline]).split()
        if len(words) != 3 or not all(word.isdigit() and len(word) < 19 for word in words):
            return None
        return int(words[0]), int(words[1]), int(words[2])

    def pieces(self, number: int, offset: int, count: int) -> Iterator[bytes]:
        """So many bytes of a file from an offset; fewer, with `trouble`, when it does not have them."""
        if number >= len(self.files):
            self.trouble = f"the host asked for file {number} of {len(self.files)}"
            return
        try:
            with open(self.files[number], "rb") as file:  # noqa: PTH123  a path as text, on the way to every piece
                file.seek(offset)
                while count and (piece := file.read(min(PIECE, count))):
                    count -= len(piece)
                    yield piece
                if count:
                    self.trouble = f"{self.files[number]} is {count} bytes shorter than it was"
        except OSError as error:
            self.trouble = f"{self.files[number]} cannot be read here: {(error.strerror or 'error').lower()}"


def with_trouble(answer: Exit, offer: Offer | None) -> Exit:
    """The answer of a command that failed because a file could not be given says so last."""
    if offer is None or not offer.trouble or answer.ok:
        return answer
    return replace(answer, stderr=f"{answer.stderr.rstrip()}\n{offer.trouble}\n")
