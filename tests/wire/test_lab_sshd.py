"""Simulated hosts behind real SSH: the contract of every transport, OpenSSH's own client, and faults."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import paramiko
import pytest

from gpufleet.clock import SystemClock
from gpufleet.errors import HostUnreachable
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import build_fleet, wishes_of
from gpufleet.lab.lab_files import LabFolder
from gpufleet.lab.sshd import LabServer
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.ssh.transport import SshTransport
from gpufleet.remote.target import Target
from tests.kit.lab_kit import own_network
from tests.kit.transport_kit import TransportKit, Way

pytestmark = pytest.mark.wire
HOST = HostName("gpu-01")


def serve(folder: Path, *faults: Fault, count: int = 1) -> LabServer:
    fleet = build_fleet(wishes_of(count, network=own_network(count)), SystemClock())
    return LabServer(fleet, LabFolder(folder), FaultScript(faults))


def target(server: LabServer, name: HostName = HOST, **more) -> Target:
    lab = server.fleet[name]
    values = {
        "name": name,
        "host": lab.host.address,
        "port": server.port,
        "user": "ops",
        "identity_file": str(server.folder.key),
        "known_hosts": str(server.folder.known_hosts),
        "config_file": str(server.folder.ssh_config),
        "connect_timeout": 30.0,
        **more,
    }
    return Target(**values)


@pytest.fixture
def reach(tmp_path: Path):
    """Serve a fleet with faults and open one of its hosts; everything is closed at the end."""
    opened: list[LabServer | SshTransport] = []

    def reach(*faults: Fault, name: HostName = HOST, **more):
        server = serve(tmp_path / "lab", *faults)
        opened.append(server)
        server.start()
        wanted = target(server, name, **more)
        transport = SshTransport({name: wanted})
        opened.append(transport)
        return server, transport

    yield reach
    for one in reversed(opened):
        one.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    with serve(tmp_path_factory.mktemp("lab")) as server:
        server.fleet[HOST].host.fs.make_directories("/home/ops/scratch", "ops")
        yield server


class TestLabSshd(TransportKit):
    @pytest.fixture
    def way(self, served):
        transport = SshTransport({HOST: target(served)})
        yield Way(transport, HOST, "/home/ops/scratch")
        transport.close()


def ask(transport: SshTransport, text: str, name: HostName = HOST, **more):
    return transport.open(name).run(Command(script=text, mutates=True, **more))


@pytest.mark.skipif(
    shutil.which("ssh") is None, reason="OpenSSH's client is not installed (package openssh-client)"
)
def test_people_reach_hosts_with_ssh(served):
    def ssh(*words: str, **more):
        config = ["ssh", "-F", str(served.folder.ssh_config), "-o", "BatchMode=yes", "gpu-01", *words]
        return subprocess.run(config, capture_output=True, text=True, timeout=60, check=False, **more)

    run = "docker run -d --name web nginx; docker ps --format '{{.Names}}'; exit 7"
    done = ssh(run, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (7, "web")
    assert ssh("sh -c 'echo out; echo err >&2'", stdin=subprocess.DEVNULL).stderr == "err\n"
    assert ssh("cat > note; cat note | wc -c | tr -d ' '", input="hello").stdout == "5\n"
    assert ssh("docker rm -f web", stdin=subprocess.DEVNULL).returncode == 0


def test_another_key_and_another_user_are_refused(reach):
    _, transport = reach(user="nobody-here")
    with pytest.raises(HostUnreachable):
        transport.open(HOST)


def test_a_refused_connection(reach):
    _, transport = reach(Fault(kind=Kind.REFUSE, host=HOST, nth=1, times=100))
    with pytest.raises(HostUnreachable):
        transport.open(HOST)


@pytest.mark.parametrize(("kind", "happened"), [(Kind.LOSE_BEFORE, False), (Kind.LOSE_AFTER, True)])
def test_a_link_that_is_cut(reach, kind, happened):
    server, transport = reach(Fault(kind=kind, host=HOST, pattern="touch mark"))
    outcome = ask(transport, "touch mark", timeout=60.0)
    assert isinstance(outcome, Lost)
    assert outcome.sent
    assert ask(transport, "[ -e mark ] && echo yes || echo no") == Exit(
        code=0, stdout="yes\n" if happened else "no\n"
    )
    assert server.fleet[HOST].host.fs.exists("/home/ops/mark") is happened


def test_a_host_that_never_answers(reach):
    _, transport = reach(Fault(kind=Kind.HANG, host=HOST, pattern="touch mark"))
    outcome = ask(transport, "touch mark", timeout=1.0)
    assert isinstance(outcome, Lost)
    assert outcome.sent


def test_a_docker_engine_that_hangs_is_ended_by_timeout(reach):
    _, transport = reach(Fault(kind=Kind.DAEMON_HUNG, host=HOST, nth=1))
    assert ask(transport, "timeout 0.3 docker ps; echo $?", timeout=60.0) == Exit(code=0, stdout="124\n")


def test_power_off(reach):
    server, transport = reach(Fault(kind=Kind.POWER_OFF, host=HOST, pattern="touch mark", after=0))
    session = transport.open(HOST)
    outcome = session.run(Command(script="touch mark", timeout=60.0, mutates=True))
    assert isinstance(outcome, Lost)
    assert server.fleet[HOST].dead
    assert not server.fleet[HOST].host.fs.exists("/home/ops/mark")


def test_a_noisy_login(reach):
    _, transport = reach(user="noisy")
    session = transport.open(HOST)
    assert session.run(Command(script="echo x", mutates=False)) == Exit(code=0, stdout="x\n")


def test_the_eleventh_session_of_a_connection_is_refused(served):
    lab = served.fleet[HOST]
    with paramiko.Transport((lab.host.address, served.port)) as connection:
        key = paramiko.ECDSAKey.from_private_key_file(str(served.folder.key))
        connection.connect(username="ops", pkey=key)
        channels = [connection.open_session(timeout=30.0) for _ in range(10)]
        with pytest.raises(paramiko.ChannelException) as refused:
            connection.open_session(timeout=30.0)
        assert refused.value.code == 2
        for channel in channels:
            channel.close()
