"""What file descriptors point to. Text is byte text: one character a byte, whatever the encoding was."""

from __future__ import annotations

from typing import Protocol

from gpufleet.lab.simfs import File, Full, SimFs


def byte_text(content: bytes | str) -> str:
    """Bytes, or Unicode text as its UTF-8 bytes, one character a byte."""
    return (content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content).decode(
        "latin-1"
    )


def unicode_text(text: str) -> str:
    """Byte text as Unicode."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


class Reader:
    """Something to read from, with a place in it that all holders of the descriptor share."""

    __slots__ = ("at", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.at = 0

    def rest(self) -> str:
        """Everything that is left."""
        rest = self.text[self.at :]
        self.at = len(self.text)
        return rest

    def take(self, count: int) -> str:
        """So many characters, fewer at the end."""
        taken = self.text[self.at : self.at + count]
        self.at += len(taken)
        return taken

    def line(self) -> str | None:
        """The next line with its end; None at the end."""
        if self.at >= len(self.text):
            return None
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end + 1
        line = self.text[self.at : end]
        self.at = end
        return line


class Sink(Protocol):
    """Something to write to."""

    def write(self, text: str) -> None:
        """Append byte text; raises `FsError` when the disk is full."""
        ...


class Capture:
    """Keeps what was written."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def write(self, text: str) -> None:
        self.pieces.append(text)

    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class Void:
    """/dev/null."""

    def write(self, text: str) -> None:
        """Forget it."""


class FullDevice:
    """/dev/full."""

    def write(self, text: str) -> None:
        """Refuse as a full disk does."""
        if text:
            raise Full


class FileSink:
    """An open file with a place of its own, or at the end when it appends."""

    def __init__(self, fs: SimFs, path: str, node: File, *, append: bool) -> None:
        self._fs, self._path, self._node, self._append = fs, path, node, append
        self._at = 0

    def write(self, text: str) -> None:
        content = text.encode("latin-1")
        at = len(self._node.content) if self._append else self._at
        self._fs.extend(self._path, self._node, content, at)
        self._at = at + len(content)


Stream = Reader | Sink
