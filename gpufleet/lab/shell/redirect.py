"""Redirections: file descriptors of one command, and for good with `exec`."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.lab.shell.call import ExitShell
from gpufleet.lab.shell.streams import FileSink, FullDevice, Reader, Sink, Stream, Void
from gpufleet.lab.shell.syntax import Redirection, Unsupported, Word
from gpufleet.lab.simfs import Directory, FsError
from gpufleet.lab.simhost import SimHost


class Redirections:
    """The part of the shell that opens files."""

    host: SimHost
    user: str
    umask: int
    cwd: str
    options: set[str]
    fds: dict[int, Stream]

    def single(self, word: Word) -> str:
        """One value of a word."""
        raise NotImplementedError

    def complain(self, text: str, status: int = 2) -> int:
        """A line of the shell itself on standard error."""
        raise NotImplementedError

    def sink(self, fd: int) -> Sink:
        """Where a descriptor writes to; a closed one forgets."""
        stream = self.fds.get(fd)
        return Void() if stream is None or isinstance(stream, Reader) else stream

    def redirected(
        self, redirections: tuple[Redirection, ...], act: Callable[[], int], *, fatal: bool = False
    ) -> int:
        """Run `act` with other descriptors; a refusal is status 2, and ends the shell when `fatal`."""
        before = dict(self.fds)
        try:
            if not self._open(redirections):
                if fatal:
                    raise ExitShell(2)
                return 2
            try:
                return act()
            except FsError as refused:
                self.fds = dict(before)
                return self.complain(f"write error: {refused}", 1)
        finally:
            self.fds = before

    def redirect_for_good(self, redirections: tuple[Redirection, ...]) -> int:
        """`exec` with redirections alone."""
        if not self._open(redirections):
            raise ExitShell(2)
        return 0

    def _open(self, redirections: tuple[Redirection, ...]) -> bool:
        for redirection in redirections:
            target = self.single(redirection.target)
            try:
                self._one(redirection.fd, redirection.operator, target)
            except FsError as refused:
                verb = "open" if redirection.operator == "<" else "create"
                self.complain(f"cannot {verb} {target}: {refused}")
                return False
        return True

    def _one(self, fd: int, operator: str, target: str) -> None:
        match operator:
            case "<<":
                self.fds[fd] = Reader(target)
            case "<":
                self.fds[fd] = self._reader(target)
            case ">&" | "<&":
                self._duplicate(fd, target)
            case ">" | ">|" | ">>":
                self.fds[fd] = self._writer(target, append=operator == ">>")
            case _:
                raise Unsupported(f"redirection {operator}")

    def _duplicate(self, fd: int, target: str) -> None:
        if target == "-":
            self.fds.pop(fd, None)
        elif target.isdigit():
            stream = self.fds.get(int(target))
            if stream is None:
                raise FsError("Bad file descriptor")
            self.fds[fd] = stream
        else:
            raise Unsupported(f">&{target}: write >{target} 2>&1")

    def _reader(self, target: str) -> Reader:
        if target == "/dev/null":
            return Reader()
        if target in {"/dev/stdin", "/dev/fd/0"}:
            stream = self.fds.get(0)
            return stream if isinstance(stream, Reader) else Reader()
        path = self.host.fs_path(target, self.cwd)
        if isinstance(self.host.fs.find(path, self.user), Directory):
            return Reader()
        return Reader(self.host.fs.read(path, self.user).decode("latin-1"))

    def _writer(self, target: str, *, append: bool) -> Sink:
        match target:
            case "/dev/null":
                return Void()
            case "/dev/full":
                return FullDevice()
            case "/dev/stdout" | "/dev/stderr":
                return self.sink(1 if target.endswith("out") else 2)
            case "/dev/tty":
                raise FsError("No such device or address")
            case _:
                return self._file(target, append=append)

    def _file(self, target: str, *, append: bool) -> Sink:
        path = self.host.fs_path(target, self.cwd)
        exclusive = "C" in self.options and not append
        node = self.host.fs.open_write(
            path, self.user, append=append, mode=0o666 & ~self.umask, exclusive=exclusive
        )
        return FileSink(self.host.fs, path, node, append=append)
