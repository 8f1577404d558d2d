"""Finding a program on the host and running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gpufleet.lab.shell.builtins import REFUSED
from gpufleet.lab.shell.call import Call, Parked, Program, Shared
from gpufleet.lab.shell.redirect import Redirections
from gpufleet.lab.shell.streams import Reader, Stream
from gpufleet.lab.shell.syntax import Node, Unsupported
from gpufleet.lab.simfs import FsError
from gpufleet.lab.simhost import Killed

if TYPE_CHECKING:
    from gpufleet.lab.shell.interpreter import Shell


class Programs(Redirections):
    """The part of the shell that starts programs."""

    variables: dict[str, str]
    exported: set[str]
    shared: Shared
    traps: dict[str, str]

    status: int
    last_background: int

    def run_child(self, command: Node, *, fds: dict[int, Stream]) -> int:
        """Run a command in a subshell."""
        raise NotImplementedError

    def run_lines(self, text: str) -> None:
        """Run script text as part of this shell."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The exported variables."""
        return {name: self.variables[name] for name in self.exported if name in self.variables}

    def find_program(self, name: str, path: str | None = None) -> str | None:
        """Where a program stands, by PATH or by the path itself."""
        programs = self.host.programs
        if "/" in name:
            absolute = self.host.fs_path(name, self.cwd)
            return absolute if absolute in programs else None
        for directory in (self.variables.get("PATH", "") if path is None else path).split(":"):
            candidate = f"{directory.rstrip('/')}/{name}"
            if candidate in programs:
                return candidate
        return None

    def program(
        self, argv: list[str], env: dict[str, str], *, user: str = "", stdin: Reader | None = None
    ) -> int:
        """Run a program of the host with an environment of its own."""
        place = self.find_program(argv[0], env.get("PATH"))
        if place is None:
            return self._not_a_program(argv[0])
        program: Program = self.host.programs[place]
        source = self.fds[0] if stdin is None else stdin
        call = Call(
            argv=argv,
            stdin=source if isinstance(source, Reader) else Reader(),
            out=self.sink(1),
            err=self.sink(2),
            env=env,
            cwd=self.cwd,
            user=user or self.user,
            shell=cast("Shell", self),
        )
        try:
            return program(call)
        except FsError as refused:
            return call.complain(f"{argv[0]}: write error: {refused}")

    def _not_a_program(self, name: str) -> int:
        if "/" in name:
            node = self.host.fs.seek(self.host.fs_path(name, self.cwd), self.user)
            if node is not None:
                return self.complain(f"{name}: Permission denied", 126)
        elif name in self.host.known_programs:
            return self.complain(f"{name}: not found", 127)
        elif "/" not in name and name in REFUSED:
            raise Unsupported(name)
        return self.complain(f"{name}: not found", 127)

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal; one to a shell that waits for this command ends it at once."""
        if not self.host.signal(pid, number):
            return False
        if number and pid in self.shared.pids:
            action = self.traps.get({15: "TERM", 2: "INT", 1: "HUP"}.get(number, ""))
            if action is None or number == 9:
                raise Killed(number)
            self.host.processes[pid].signal = 0
            self.run_lines(action)
        elif number and self.shared.parked.get(pid) is None and number in {9, 15}:
            self.host.finish(pid)
        return True

    # -- jobs in the background ----------------------------------------------------------------------------------

    def begin_job(self, command: Node) -> None:
        """`command &`."""
        pid = self.host.spawn(self.user, "sh")
        self.shared.background += 1
        try:
            status = self.run_child(command, fds={0: Reader()})
        except Parked as parked:
            self.shared.parked[pid] = parked.until
            until = self.host.clock.monotonic() + parked.until - self.shared.elapsed
            if parked.first:
                self.shared.again[pid] = lambda: self.run_child(command, fds={0: Reader()})
            else:
                self.host.processes[pid].until = until
        else:
            self.shared.finished[pid] = status
            self.host.finish(pid)
        finally:
            self.shared.background -= 1
        self.last_background = pid
        self.status = 0

    def ripen(self, pid: int) -> None:
        """Run a parked job whose sleep is over, unless a signal ended it."""
        shared, run = self.shared, self.shared.again.pop(pid)
        if self.host.signalled(pid):
            return
        del shared.parked[pid]
        shared.background, shared.ripe = shared.background + 1, True
        try:
            shared.finished[pid] = run()
        finally:
            shared.background, shared.ripe = shared.background - 1, False
        self.host.finish(pid)
