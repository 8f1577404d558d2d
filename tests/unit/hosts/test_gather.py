"""Gathering over transports of a test's own: every host's outcome comes back, whatever the others do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gpufleet.errors import AuthenticationRefused, HostUnreachable
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.hosts.probes.script import Section
from gpufleet.inventory.model import Address, Become, Host
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.local import LocalTransport
from gpufleet.remote.result import Exit, Lost, Outcome
from gpufleet.remote.target import Target, Way
from tests.unit.hosts.answers import healthy, section

Reply = Callable[[Command], Outcome]


class Frozen:
    def now(self) -> datetime:
        return datetime(2026, 11, 30, 12, tzinfo=UTC)

    def monotonic(self) -> float:
        return 1.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Spoken:
    """A session that answers every command with one function."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[Command] = []
        self.closed = False

    def run(self, command: Command) -> Outcome:
        self.asked.append(command)
        return self.reply(command)

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        raise AssertionError("facts write nothing")

    def close(self) -> None:
        self.closed = True


class Hosts:
    def __init__(self, **replies: Reply) -> None:
        self.sessions = {name: Spoken(reply) for name, reply in replies.items()}

    def open(self, host: HostName) -> Spoken:
        if host not in self.sessions:
            raise AuthenticationRefused("the server does not accept our key", where=host)
        return self.sessions[host]

    def close(self) -> None:
        pass


def spoken(sections: dict[str, Section]) -> Exit:
    def stream(take: Callable[[Section], str]) -> str:
        return "".join(
            f"@@gf begin {one.name}\n{take(one)}\n@@gf end {one.name} "
            f"{'skipped' if one.status is None else one.status}\n"
            for one in sections.values()
        )

    return Exit(code=0, stdout=stream(lambda one: one.text), stderr=stream(lambda one: one.errors))


def host(name: str, **wishes) -> Host:
    return Host(name=HostName(name), address=Address("10.0.0.1"), **wishes)


def test_each_host_has_its_own_outcome():
    transport = Hosts(
        good=lambda _: spoken(healthy()),
        lost=lambda _: Lost(reason="no answer within 120 s", sent=True),
        closed=lambda _: Exit(code=1, stdout="This account is currently not available.\n"),
    )
    timed: dict[str, float] = {}
    names = ("good", "lost", "closed", "locked")
    seen = gather(
        transport,
        [host(name) for name in names],
        clock=Frozen(),
        observe=lambda name, took: timed.update({name: took}),
    )
    assert tuple(seen) == names
    good = seen[HostName("good")]
    assert isinstance(good, HostFacts)
    assert good.at == "2026-11-30T12:00:00.000+00:00"
    for name in ("lost", "closed"):
        error = seen[HostName(name)]
        assert isinstance(error, HostUnreachable)
        assert error.where == name
        assert error.hints
    assert isinstance(seen[HostName("locked")], AuthenticationRefused)
    assert set(timed) == set(names)
    assert all(session.closed for session in transport.sessions.values())


def test_one_round_trip_a_host():
    transport = Hosts(good=lambda _: spoken(healthy()))
    gather(transport, [host("good", runtime_path="/opt/x y/docker", become=Become.NEVER)], clock=Frozen())
    (command,) = transport.sessions["good"].asked
    assert command.argv == ("auto", "/opt/x y/docker", "never")
    assert not command.mutates
    assert not command.become


REFUSED = {name: one for name, one in healthy().items() if name not in {"info", "containers"}} | {
    "version": section("version", "permission denied while trying to connect", status=1)
}


def by_root(command: Command) -> Outcome:
    return spoken(healthy()) if command.become else spoken(REFUSED)


def test_sudo_with_a_password_opens_the_runtime():
    transport = Hosts(good=by_root)
    seen = gather(transport, [host("good", sudo_password=Secret("pw"))], clock=Frozen())[HostName("good")]
    assert isinstance(seen, HostFacts)
    assert isinstance(seen.runtime, Known)
    assert seen.runtime.value.needs_sudo is True
    assert transport.sessions["good"].asked[1].argv[1] == "/usr/bin/docker"


@pytest.mark.parametrize("wishes", [{}, {"sudo_password": Secret("pw"), "become": Become.NEVER}])
def test_without_the_password_or_the_wish_nobody_becomes_root(wishes):
    transport = Hosts(good=by_root)
    seen = gather(transport, [host("good", **wishes)], clock=Frozen())[HostName("good")]
    assert isinstance(seen, HostFacts)
    assert isinstance(seen.runtime, Unknown)
    assert [command.become for command in transport.sessions["good"].asked] == [False]


def test_a_wrong_sudo_password_is_told():
    def reply(command: Command) -> Outcome:
        return Exit(code=1, sudo_refused="wrong-password") if command.become else spoken(REFUSED)

    seen = gather(Hosts(good=reply), [host("good", sudo_password=Secret("pw"))], clock=Frozen())[
        HostName("good")
    ]
    assert isinstance(seen, HostFacts)
    assert [symptom.code for symptom in seen.symptoms] == ["sudo-refused", "runtime-refused"]
    assert seen.symptoms[0].detail == "sudo does not accept the password"


def test_this_machine_in_earnest():
    """The real script in the real /bin/sh of this machine: whatever is installed here, it ends and is understood."""
    name = HostName("here")
    transport = LocalTransport({name: Target(name=name, way=Way.LOCAL)})
    seen = gather(transport, [host("here")], clock=Frozen())[name]
    assert isinstance(seen, HostFacts), seen
    assert isinstance(seen.kernel, Known)
    assert isinstance(seen.disks, Known)
    assert isinstance(seen.boot_id, Known)
    json.dumps(str(seen))
