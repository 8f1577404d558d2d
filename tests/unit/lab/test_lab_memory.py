"""The transport in memory does what every transport must do, and its faults do what they say."""

from __future__ import annotations

import pytest

from gpufleet.errors import HostUnreachable
from gpufleet.lab.faults import USUAL, Fault, FaultScript, Kind
from gpufleet.lab.fleet import Fleet, build_fleet, wishes_of
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit, Lost
from tests.kit.lab_kit import LabClock
from tests.kit.transport_kit import TransportKit, Way

HOST = HostName("gpu-01")


def fleet_of(count: int = 1, **more) -> Fleet:
    return build_fleet(wishes_of(count, **more), LabClock())


class TestMemoryTransport(TransportKit):
    @pytest.fixture
    def way(self):
        transport = MemoryTransport(fleet_of())
        transport.fleet[HOST].host.fs.make_directories("/home/ops/scratch", "ops")
        return Way(transport=transport, host=HOST, scratch="/home/ops/scratch")


def answer(transport: MemoryTransport, text: str, host: HostName = HOST, **more):
    session = transport.open(host)
    return session.run(Command(script=text, mutates=True, **more))


def test_a_password_for_sudo():
    transport = MemoryTransport(
        fleet_of(), users={HOST: "pwops"}, sudo_passwords={HOST: Secret("correct horse")}
    )
    assert answer(transport, "id -un", become=True) == Exit(code=0, stdout="root\n")
    transport.sudo_passwords[HOST] = Secret("wrong")
    refused = answer(transport, "id -un", become=True)
    assert isinstance(refused, Exit)
    assert refused.sudo_refused == "wrong-password"


@pytest.mark.parametrize(
    ("user", "reason"),
    [("pwops", "password-needed"), ("nosudo", "password-needed"), ("tty", "tty-required")],
)
def test_sudo_that_refuses(user, reason):
    refused = answer(MemoryTransport(fleet_of(), users={HOST: user}), "id", become=True)
    assert isinstance(refused, Exit)
    assert refused.sudo_refused == reason


def test_a_noisy_login_is_told_apart_from_the_answer():
    transport = MemoryTransport(fleet_of(), users={HOST: "noisy"})
    session = transport.open(HOST)
    assert session.run(Command(argv=("echo", "x"), mutates=False)) == Exit(code=0, stdout="x\n")
    assert session.noisy


def faulty(*faults: Fault, count: int = 1) -> MemoryTransport:
    return MemoryTransport(fleet_of(count), FaultScript(faults))


def test_a_refused_connection_and_then_not():
    transport = faulty(Fault(kind=Kind.REFUSE, host=HOST, nth=1))
    with pytest.raises(HostUnreachable):
        transport.open(HOST)
    assert answer(transport, "echo x") == Exit(code=0, stdout="x\n")


@pytest.mark.parametrize(
    ("kind", "happened"), [(Kind.LOSE_BEFORE, False), (Kind.LOSE_AFTER, True), (Kind.HANG, False)]
)
def test_a_lost_answer(kind, happened):
    transport = faulty(Fault(kind=kind, host=HOST, pattern="touch mark"))
    outcome = answer(transport, "touch mark", timeout=30.0)
    assert isinstance(outcome, Lost)
    assert outcome.sent
    assert transport.fleet[HOST].host.fs.exists("/home/ops/mark") is happened
    assert answer(transport, "echo again") == Exit(code=0, stdout="again\n")


def test_power_off_in_the_middle_and_back():
    transport = faulty(Fault(kind=Kind.POWER_OFF, host=HOST, nth=1, after=26, seconds=60.0))
    outcome = answer(transport, "for i in 1 2 3 4 5 6 7 8 9; do echo x > f$i; done")
    assert outcome == Lost(reason="the connection was lost", sent=True)
    names = transport.fleet[HOST].host.fs.names("/home/ops")
    assert 0 < len(names) < 9
    with pytest.raises(HostUnreachable):
        transport.open(HOST)
    boot = transport.fleet[HOST].host.boot_id
    transport.fleet.clock.sleep(61)
    assert answer(transport, "cat /proc/sys/kernel/random/boot_id") != Exit(code=0, stdout=f"{boot}\n")


def test_a_full_disk_refuses_files_and_says_so():
    transport = faulty(Fault(kind=Kind.DISK_FULL, host=HOST, nth=1))
    refused = answer(
        transport,
        "echo x > f || echo no; cat f; mkdir d; echo $?; df -P -k / | tail -n 1 | tr -s ' ' | cut -d' ' -f4",
    )
    assert isinstance(refused, Exit)
    assert refused.stdout == "no\n1\n0\n"
    assert "No space left on device" in refused.stderr


def test_the_same_seed_gives_the_same_faults():
    hosts = ["a", "b", "c"]
    for seed in range(200):
        assert str(FaultScript.random(seed, hosts)) == str(FaultScript.random(seed, hosts))
    assert {fault.kind for seed in range(400) for fault in FaultScript.random(seed, hosts).faults} == set(
        USUAL
    )


def test_deadlines_count_the_own_waits_only():
    transport = faulty(count=1)
    assert isinstance(answer(transport, "sleep 50; echo done", timeout=60.0), Exit)
    transport.fleet.clock.sleep(1000)
    assert isinstance(answer(transport, "sleep 50; echo done", timeout=60.0), Exit)
    assert isinstance(answer(transport, "sleep 61", timeout=60.0), Lost)


def test_a_command_that_arrives_late():
    transport = faulty(Fault(kind=Kind.LATE, host=HOST, pattern="touch mark", after=2))
    assert answer(transport, "touch mark") == Lost(reason="the connection was lost", sent=True)
    look = "[ -e mark ] && echo there || echo not yet"
    assert [answer(transport, look).stdout for _ in range(3)] == ["not yet\n", "there\n", "there\n"]


def test_two_transports_share_a_fleet():
    fleet = fleet_of()
    first, second = MemoryTransport(fleet), MemoryTransport(fleet)
    assert answer(first, "sleep 3; echo a") == Exit(code=0, stdout="a\n")
    assert answer(second, "sleep 3; echo b") == Exit(code=0, stdout="b\n")
    assert fleet[HOST].sh("sleep 2; echo c").stdout == b"c\n"
