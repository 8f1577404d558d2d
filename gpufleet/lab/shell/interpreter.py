"""Walks the tree of a script over a simulated host.

Theory of operation. There are no threads and no real descriptors: the commands of a pipeline run one after the
other, each reading what the one before wrote. Time passes only in `pause`, which every waiting program calls; a
deadline (of `timeout`, or of whoever asked for the script) that comes first ends the wait. A job in the
background runs at once to its end, except that one which would sleep is parked: it lives and can be killed. One that
did nothing before its sleep (`Call.pause_first`: a pull) is run when that is over; any other is never resumed, which is
what a watchdog needs and no more.
"""

from __future__ import annotations

import contextlib
import math

from gpufleet.lab.shell import builtins
from gpufleet.lab.shell.arithmetic import ArithmeticFault
from gpufleet.lab.shell.call import (
    DeadlinePassed,
    ExitShell,
    LeaveLoop,
    Parked,
    PowerCut,
    ReturnFunction,
    Shared,
)
from gpufleet.lab.shell.expand import Expansion, UnsetVariable
from gpufleet.lab.shell.launch import Programs
from gpufleet.lab.shell.parse import parse
from gpufleet.lab.shell.patterns import matches
from gpufleet.lab.shell.streams import Capture, Reader, Sink, Stream
from gpufleet.lab.shell.syntax import (
    AndOr,
    Background,
    Case,
    For,
    Function,
    If,
    Loop,
    Node,
    Pipeline,
    Redirected,
    Sequence,
    Simple,
    Subshell,
    Unsupported,
)
from gpufleet.lab.simhost import SimHost

STEPS = 150_000
"""Commands that one script may run; a loop without end is a fault of the script."""


class Shell(Expansion, Programs):
    """One shell or subshell."""

    def __init__(self, host: SimHost, user: str, shared: Shared, streams: tuple[Reader, Sink, Sink]) -> None:
        self.host = host
        self.user = user
        self.shared = shared
        self.name = "sh"
        self.cwd = host.users[user].home
        self.umask = 0o022
        self.variables: dict[str, str] = {}
        self.exported: set[str] = set()
        self.parameters: list[str] = []
        self.functions: dict[str, Node] = {}
        self.options: set[str] = set()
        self.traps: dict[str, str] = {}
        self.locals: list[dict[str, str | None]] = []
        self.status = 0
        self.last_background = 0
        self.substitution_status: int | None = None
        self.pid = 0
        self.guarded = 0
        """Depth of conditions, in which a failure does not end a shell under `set -e`."""
        self.loops = 0
        self.fds: dict[int, Stream] = dict(enumerate(streams))

    # -- running -----------------------------------------------------------------------------------------------

    def run_as_process(self, text: str) -> int:
        """Run a whole script as a process of its own, traps included; gives the exit status."""
        self.pid = self.host.spawn(self.user, "sh")
        self.shared.pids.append(self.pid)
        try:
            with contextlib.suppress(ReturnFunction, LeaveLoop):
                self.run_lines(text)
            return self._leave()
        except ExitShell as ending:
            self.status = ending.status
            return self._leave()
        finally:
            self.shared.pids.remove(self.pid)
            self.host.finish(self.pid)

    def run_lines(self, text: str) -> None:
        """Run script text as part of this shell."""
        script = parse(text)
        for command in script.commands:
            self.execute(command)
        if isinstance(script.fault, Unsupported):
            raise script.fault
        if script.fault is not None:
            self.complain(f"Syntax error: {script.fault}")
            raise ExitShell(2)

    def _leave(self) -> int:
        action = self.traps.pop("EXIT", "")
        if action:
            status = self.status
            try:
                self.run_lines(action)
                self.status = status
            except ExitShell as ending:
                self.status = ending.status
        return self.status

    def child(self) -> Shell:
        """A subshell: everything copied, descriptors shared."""
        child = Shell.__new__(Shell)
        child.__dict__.update(self.__dict__)
        child.variables = dict(self.variables)
        child.exported = set(self.exported)
        child.parameters = list(self.parameters)
        child.functions = dict(self.functions)
        child.options = set(self.options)
        child.locals = [dict(frame) for frame in self.locals]
        child.fds = dict(self.fds)
        child.traps = {}
        child.loops = 0
        return child

    def run_child(self, node: Node, *, fds: dict[int, Stream] | None = None) -> int:
        """Run a node in a subshell; gives its exit status."""
        child = self.child()
        child.fds.update(fds or {})
        try:
            child.execute(node)
        except ExitShell as ending:
            child.status = ending.status
        except (ReturnFunction, LeaveLoop) as ending:
            child.status = ending.status if isinstance(ending, ReturnFunction) else child.status
        return child._leave()  # noqa: SLF001  another object of this class

    def substitute(self, body: Sequence) -> str:
        """The output of `$(...)` without the line ends behind it."""
        out = Capture()
        self.substitution_status = self.run_child(body, fds={1: out})
        return out.text().rstrip("\n").replace("\0", "")

    def execute(self, node: Node) -> int:
        """Run one node; sets and gives the status."""
        self.shared.steps += 1
        if self.shared.fuse is not None and self.shared.steps > self.shared.fuse:
            raise PowerCut
        if self.shared.steps > STEPS:
            raise Unsupported(f"more than {STEPS} commands in one script")
        match node:
            case Simple():
                self.status = self._faults(node)
                self._check()
            case Sequence(items):
                if not items:
                    self.status = 0
                for item in items:
                    self.execute(item)
            case Pipeline():
                self._pipeline(node)
            case AndOr():
                self._and_or(node)
            case If():
                self._if(node)
            case For():
                self._for(node)
            case Loop():
                self._loop(node)
            case Case():
                self._case(node)
            case Subshell(body):
                self.status = self.run_child(body)
                self._check()
            case Function(name, body):
                self.functions[name] = body
                self.status = 0
            case Redirected(command, redirections):
                self.status = self.redirected(redirections, lambda: self.execute(command))
                if self.status and not isinstance(command, Sequence | If | For | Loop | Case):
                    self._check()
            case Background(command):
                self.begin_job(command)
        return self.status

    def _check(self) -> None:
        if self.status and "e" in self.options and not self.guarded:
            raise ExitShell(self.status)

    def _condition(self, node: Node) -> bool:
        self.guarded += 1
        try:
            return self.execute(node) == 0
        finally:
            self.guarded -= 1

    def _pipeline(self, node: Pipeline) -> None:
        if len(node.commands) == 1:
            self._condition(node.commands[0])
        else:
            source: Stream = self.fds[0]
            for command in node.commands[:-1]:
                out = Capture()
                self.run_child(command, fds={0: source, 1: out})
                source = Reader(out.text())
            self.status = self.run_child(node.commands[-1], fds={0: source})
        if node.negated:
            self.status = int(not self.status)
        else:
            self._check()

    def _and_or(self, node: AndOr) -> None:
        self._condition(node.first)
        for index, (operator, command) in enumerate(node.rest):
            if (operator == "&&") == (self.status == 0):
                if index == len(node.rest) - 1:
                    self.execute(command)
                else:
                    self._condition(command)

    def _if(self, node: If) -> None:
        for condition, body in node.arms:
            if self._condition(condition):
                self.execute(body)
                return
        self.status = 0
        if node.otherwise is not None:
            self.execute(node.otherwise)

    def _for(self, node: For) -> None:
        values = list(self.parameters) if node.words is None else self.fields(node.words)
        self.status = 0
        for value in values:
            self.variables[node.name] = value
            if self._body(node.body):
                return

    def _loop(self, node: Loop) -> None:
        status = 0
        while self._condition(node.condition) != node.until:
            if self._body(node.body):
                status = self.status
                break
            status = self.status
        self.status = status

    def _body(self, body: Sequence) -> bool:
        """One turn of a loop; True when the loop is to be left."""
        self.loops += 1
        try:
            self.execute(body)
        except LeaveLoop as leave:
            self.status = 0
            if leave.levels > 1 and self.loops > 1:
                raise LeaveLoop(leave.levels - 1, again=leave.again) from None
            return not leave.again
        finally:
            self.loops -= 1
        return False

    def _case(self, node: Case) -> None:
        subject = self.single(node.word)
        self.status = 0
        for alternatives, body in node.arms:
            if any(matches(self.pieces(pattern), subject) for pattern in alternatives):
                self.execute(body)
                return

    # -- simple commands ---------------------------------------------------------------------------------------

    def _faults(self, node: Simple) -> int:
        try:
            return self._simple(node)
        except UnsetVariable as fault:
            self.complain(str(fault))
            raise ExitShell(2) from None
        except ArithmeticFault as fault:
            self.complain(str(fault))
            raise ExitShell(2) from None

    def _simple(self, node: Simple) -> int:
        self.substitution_status = None
        argv = self.fields(node.words)
        if not argv:
            for name, word in node.assignments:
                self.variables[name] = self.single(word)
            done = self.substitution_status or 0
            return self.redirected(node.redirections, lambda: done) if node.redirections else done
        assigned = {name: self.single(word) for name, word in node.assignments}
        if not node.redirections:
            return self.command(argv, assigned)
        if argv[0] == "exec" and len(argv) == 1:
            return self.redirect_for_good(node.redirections)
        special = argv[0] in builtins.SPECIAL and argv[0] not in self.functions
        return self.redirected(node.redirections, lambda: self.command(argv, assigned), fatal=special)

    def command(self, argv: list[str], assigned: dict[str, str], *, functions: bool = True) -> int:
        """Run a function, a builtin or a program."""
        name = argv[0]
        if functions and name in self.functions:
            return self._with(assigned, lambda: self._function(self.functions[name], argv))
        builtin = builtins.BUILTINS.get(name)
        if builtin is None:
            return self.program(argv, {**self.environment(), **assigned})
        if name in builtins.SPECIAL:
            self.variables.update(assigned)
            return builtin(self, argv)
        return self._with(assigned, lambda: builtin(self, argv))

    def _with(self, assigned: dict[str, str], act: builtins.Act) -> int:
        if not assigned:
            return act()
        before = {name: self.variables.get(name) for name in assigned}
        exported = assigned.keys() - self.exported
        self.variables.update(assigned)
        self.exported |= exported
        try:
            return act()
        finally:
            self.exported -= exported
            self.restore(before)

    def restore(self, before: dict[str, str | None]) -> None:
        """Give variables back the values they had."""
        for name, value in before.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def _function(self, body: Node, argv: list[str]) -> int:
        if len(self.locals) > 200:
            raise Unsupported("functions nested 200 deep")
        parameters, loops = self.parameters, self.loops
        self.parameters, self.loops = argv[1:], 0
        self.locals.append({})
        try:
            return self.execute(body)
        except ReturnFunction as ending:
            return ending.status
        finally:
            self.parameters, self.loops = parameters, loops
            self.restore(self.locals.pop())

    def complain(self, text: str, status: int = 2) -> int:
        """A line of the shell itself on standard error."""
        self.sink(2).write(f"{self.name}: 1: {text}\n")
        return status

    # -- time --------------------------------------------------------------------------------------------------

    def pause(self, seconds: float, *, first: bool = False) -> None:
        """Let time pass; raises when a deadline or a signal comes first, or parks a background job."""
        shared = self.shared
        if shared.background and first and shared.ripe:
            return
        if shared.background:
            raise Parked(shared.elapsed + seconds, first=first)
        limit = min(shared.deadlines, default=float("inf"))
        slept = max(0.0, min(seconds, limit - shared.elapsed))
        self.host.rest(slept, tuple(shared.pids))
        shared.elapsed += slept
        for pid in [pid for pid in shared.again if shared.parked.get(pid, math.inf) <= shared.elapsed]:
            self.ripen(pid)
        if slept < seconds:
            raise DeadlinePassed(limit)
