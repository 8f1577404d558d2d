"""A Transport over simulated hosts, in memory: every command runs through its real frame and the lab's shell.

Time is the fleet's clock. A command's deadline counts what the command itself waited, so that threads which share
a turned clock do not end each other's commands. One lock a host makes a script atomic but for its waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpufleet.errors import HostUnreachable, SelectionError
from gpufleet.lab.faults import LINK, Fault, FaultScript, Kind
from gpufleet.lab.fleet import Fleet, LabHost
from gpufleet.lab.shell.call import DeadlinePassed, PowerCut
from gpufleet.lab.shell.run import Ended, run_shell
from gpufleet.lab.shell.streams import Capture, Reader
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command, reveal
from gpufleet.remote.files import put_command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.offer import Offer, with_trouble
from gpufleet.remote.result import Exit, Lost, Outcome

MARKER = "gpufleet-lab-frame"
"""Always the same: no simulated host prints it by chance, and a script that is repeated is parsed once."""


class MemoryTransport:
    """Opens sessions to the hosts of a fleet.

    Args:
        users: login by host, where it is not the host's own.
        sudo_passwords: by host.
    """

    def __init__(
        self,
        fleet: Fleet,
        faults: FaultScript | None = None,
        *,
        users: Mapping[str, str] | None = None,
        sudo_passwords: Mapping[str, Secret[str]] | None = None,
    ) -> None:
        self.fleet = fleet
        self.faults = faults or FaultScript()
        self.users = dict(users or {})
        self.sudo_passwords = dict(sudo_passwords or {})
        self.commands: dict[str, int] = {}
        """Commands sent to each host so far."""
        self.opens: dict[str, int] = {}
        self._late: dict[str, list[tuple[int, Callable[[], object]]]] = {}
        """By host: commands that arrive late, and before which one."""

    def open(self, host: HostName) -> MemorySession:
        """A session; raises `HostUnreachable` when the host is dead or refuses."""
        if host not in self.fleet.hosts:
            raise SelectionError(f"there is no host {host}")
        lab = self.fleet[host]
        with lab.lock:
            self.opens[host] = self.opens.get(host, 0) + 1
            if not lab.check_power():
                raise HostUnreachable("connection timed out", where=host)
            if self.faults.due(host, self.opens[host], "", {Kind.REFUSE}):
                raise HostUnreachable("connection refused", where=host)
        return MemorySession(self, lab)

    def hold_back(self, host: str, count: int, act: Callable[[], object]) -> None:
        """Let `act` happen before the `count`-th command from now on."""
        self._late.setdefault(host, []).append((self.commands[host] + max(1, count), act))

    def let_in(self, host: str) -> None:
        """What was held back and is due."""
        due = [entry for entry in self._late.get(host, ()) if entry[0] <= self.commands[host]]
        for entry in due:
            self._late[host].remove(entry)
            entry[1]()

    def close(self) -> None:
        """Nothing is kept open."""


class MemorySession:
    """One open way to one host. Safe to use from several threads."""

    def __init__(self, transport: MemoryTransport, lab: LabHost) -> None:
        self._transport = transport
        self._lab = lab
        self._closed = False

    @property
    def noisy(self) -> bool:
        """Whether the login prints text of its own."""
        return bool(self._lab.host.users[self._user].noise)

    @property
    def _user(self) -> str:
        return self._transport.users.get(self._lab.name, self._lab.host.login)

    def run(self, command: Command) -> Outcome:
        """Run to the end, to the deadline, or to a fault."""
        if self._closed:
            return Lost(reason="the session is closed", sent=False)
        name = self._lab.name
        with self._lab.lock:
            if not self._lab.check_power():
                return Lost(reason="the connection was lost", sent=False)
            nth = self._transport.commands[name] = self._transport.commands.get(name, 0) + 1
            self._transport.let_in(name)
            due = self._transport.faults.due(name, nth, text_of(command))
            for fault in due:
                if fault.kind not in LINK:
                    self._lab.strike(fault)
            return self._struck(command, [fault for fault in due if fault.kind in LINK])

    def _struck(self, command: Command, link: list[Fault]) -> Outcome:
        fuse: int | None = None
        lost = False
        for fault in link:
            match fault.kind:
                case Kind.LOSE_BEFORE:
                    return Lost(reason="the connection was lost", sent=True)
                case Kind.LATE:
                    self._transport.hold_back(
                        self._lab.name, fault.after, lambda: self._execute(command, None)
                    )
                    return Lost(reason="the connection was lost", sent=True)
                case Kind.HANG:
                    self._lab.host.rest(command.timeout, ())
                    return _late(command)
                case Kind.SLOW:
                    self._lab.host.rest(min(fault.seconds, command.timeout), ())
                    if fault.seconds >= command.timeout:
                        return _late(command)
                case Kind.POWER_OFF:
                    fuse = fault.after
                case _:
                    lost = True
        outcome = self._execute(command, fuse)
        if fuse is not None:
            self._lab.power_off(next(fault.seconds for fault in link if fault.kind is Kind.POWER_OFF))
        if lost or fuse is not None:
            return Lost(reason="the connection was lost", sent=True)
        return outcome

    def _execute(self, command: Command, fuse: int | None) -> Outcome:
        lab = self._lab
        password = self._transport.sudo_passwords.get(lab.name)
        user = self._user
        text = frame(command, MARKER, sudo_password=password)
        offer = Offer(command.files, MARKER) if command.files else None
        out, err = Capture(), Capture()
        reader = Reader() if offer is None else _OfferReader(offer, out)
        try:
            ended = run_shell(
                lab.host, text, reader, user=user, patience=command.timeout, fuse=fuse, streams=(out, err)
            )
        except DeadlinePassed:
            return _late(command)
        except PowerCut:
            return Lost(reason="the connection was lost", sent=True)
        outcome = self._answer(command, ended, lab.host.users[user].noise)
        return with_trouble(outcome, offer) if isinstance(outcome, Exit) else outcome

    def _answer(self, command: Command, ended: Ended, noise: str) -> Outcome:
        if b"lab sh: unsupported" in ended.stderr:
            raise Unsupported(ended.stderr.decode("utf-8", "replace").rpartition("lab sh: unsupported: ")[2])
        stdout = noise.encode() + ended.stdout
        seen = unframe(stdout, ended.stderr, MARKER, become=command.become)
        if seen.exit is None:
            return Lost(reason="the shell was ended before it could answer", sent=True)
        return seen.exit

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        """Write a file whole."""
        return self.run(put_command(content, path, mode))

    def close(self) -> None:
        """Later commands are refused."""
        self._closed = True


class _OfferReader(Reader):
    """Standard input that is filled with what was asked for on standard output."""

    __slots__ = ("_offer", "_out")

    def __init__(self, offer: Offer, out: Capture) -> None:
        super().__init__()
        self._offer = offer
        self._out = out

    def take(self, count: int) -> str:
        wanted = self._offer.wanted(self._out.text().encode("latin-1"))
        if wanted is not None:
            self.text = b"".join(self._offer.pieces(*wanted)).decode("latin-1")
            self.at = 0
        return super().take(count)


def _late(command: Command) -> Lost:
    return Lost(reason=f"no answer within {command.timeout:g} s; the remote process was ended", sent=True)


def text_of(command: Command) -> str:
    """What patterns of faults are looked for in."""
    return f"{command.script}\n{' '.join(reveal(part) for part in command.argv)}"
