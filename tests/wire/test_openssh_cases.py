"""What operators meet, with real OpenSSH servers: keys, agents, jump hosts, changed host keys, limits, noise, losses."""

from __future__ import annotations

import os
import random
import shlex
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import AuthenticationRefused, HostKeyChanged, HostKeyUnknown, HostUnreachable
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.known_hosts import line_for
from gpufleet.remote.known_hosts_file import add_line
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.ssh import SshTransport
from gpufleet.remote.target import Target
from tests.kit.transport_kit import ask, eventually
from tests.wire.openssh import OpenSsh, agent, children, fingerprint, keygen, running

pytestmark = pytest.mark.wire
GPU = HostName("gpu-01")
ECHO = Command(script="echo here", mutates=False)
PASSPHRASE = "correct horse battery"


@pytest.fixture
def server(tmp_path: Path):
    with running(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def reach():
    """Open a target; whatever was opened is closed."""
    transports = []

    def reach(target: Target, **kwargs):
        transport = SshTransport({target.name: target}, **kwargs)
        transports.append(transport)
        return transport.open(target.name)

    yield reach
    for transport in transports:
        transport.close()


def refusal(reach, kind: type[HostUnreachable], target: Target, **kwargs) -> HostUnreachable:
    with pytest.raises(kind) as caught:
        reach(target, **kwargs)
    assert type(caught.value) is kind
    assert caught.value.where == target.name
    return caught.value


def words(error: HostUnreachable) -> str:
    return "\n".join([str(error), *error.hints])


def encrypted(folder: Path, server: OpenSsh, kind: str) -> Path:
    key = keygen(
        folder / f"id_{kind}",
        kind="rsa" if kind == "pem" else "ed25519",
        passphrase=PASSPHRASE,
        pem=kind == "pem",
    )
    assert ("Proc-Type: 4,ENCRYPTED" in key.read_text()) == (kind == "pem")
    server.authorize(key)
    return key


class TestPassphrase:
    """Case 01."""

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_none_given(self, tmp_path: Path, server: OpenSsh, reach, kind: str):
        key = encrypted(tmp_path, server, kind)
        before = server.log().count("Connection from")
        error = refusal(reach, AuthenticationRefused, server.target(identity_file=str(key)))
        assert f"{key} is passphrase-protected" in error.summary
        assert f"ssh-add {key}" in words(error)
        assert "GPUFLEET_SSH_PASSPHRASE_FILE" in words(error)
        assert server.log().count("Connection from") == before

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_the_right_one(self, tmp_path: Path, server: OpenSsh, reach, kind: str):
        key = encrypted(tmp_path, server, kind)
        session = reach(server.target(identity_file=str(key), passphrase=Secret(PASSPHRASE)))
        assert ask(session, ECHO).stdout == "here\n"

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_a_wrong_one(self, tmp_path: Path, server: OpenSsh, reach, kind: str):
        key = encrypted(tmp_path, server, kind)
        error = refusal(
            reach,
            AuthenticationRefused,
            server.target(identity_file=str(key), passphrase=Secret("hunter2hunter2")),
        )
        assert f"the passphrase does not open key {key}" in error.summary
        assert "hunter2" not in words(error)

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_the_agent_holds_the_key(self, tmp_path: Path, server: OpenSsh, reach, kind: str):
        key = keygen(tmp_path / "id", kind="rsa" if kind == "pem" else "ed25519", pem=kind == "pem")
        server.authorize(key)
        with agent(key) as path:
            form = ["-m", "PEM"] if kind == "pem" else []
            subprocess.run(["ssh-keygen", "-q", "-p", *form, "-N", PASSPHRASE, "-f", str(key)], check=True)
            config = tmp_path / "config"
            config.write_text(f"IdentityAgent {path}\n")
            session = reach(server.target(identity_file=str(key), config_file=str(config)))
            assert ask(session, ECHO).stdout == "here\n"

    def test_a_person_is_asked_once(self, tmp_path: Path, server: OpenSsh):
        key = encrypted(tmp_path, server, "openssh")
        asked: list[str] = []

        def answer(path: str) -> Secret[str]:
            asked.append(path)
            return Secret(PASSPHRASE)

        targets = {HostName(name): server.target(name, identity_file=str(key)) for name in ("a", "b", "c")}
        transport = SshTransport(targets, ask_passphrase=answer)
        with ThreadPoolExecutor(3) as pool:
            assert [ask(s, ECHO).code for s in pool.map(transport.open, targets)] == [0, 0, 0]
        transport.close()
        assert asked == [str(key)]


class TestManyAgentKeys:
    """Case 02."""

    @pytest.fixture
    def crowded(self, tmp_path: Path):
        with running(tmp_path / "sshd", "MaxAuthTries 4") as server:
            wrong = [keygen(tmp_path / f"wrong{number}") for number in range(6)]
            with agent(*wrong, server.user_key) as path:
                config = tmp_path / "config"
                config.write_text(f"IdentityAgent {path}\n")
                yield server, config

    def test_the_named_identity_alone_is_offered(self, crowded, reach):
        server, config = crowded
        assert ask(reach(server.target(config_file=str(config))), ECHO).stdout == "here\n"
        assert "Failed publickey" not in server.log()

    def test_also_when_only_the_agent_has_its_private_half(self, crowded, reach, tmp_path: Path):
        server, config = crowded
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text(server.user_key.with_name("id_user.pub").read_text())
        assert (
            ask(reach(server.target(config_file=str(config), identity_file=str(elsewhere))), ECHO).stdout
            == "here\n"
        )
        assert "Failed publickey" not in server.log()

    def test_the_identity_may_be_named_by_ssh_config(self, crowded, reach):
        server, config = crowded
        config.write_text(config.read_text() + f"IdentityFile {server.user_key}\n")
        assert ask(reach(server.target(config_file=str(config), identity_file=None)), ECHO).stdout == "here\n"
        assert "Failed publickey" not in server.log()

    def test_too_many_are_counted(self, crowded, reach):
        server, config = crowded
        error = refusal(
            reach, AuthenticationRefused, server.target(config_file=str(config), identity_file=None)
        )
        assert "closed the connection after 4 keys were offered" in error.summary
        assert "identity_file" in words(error)


def test_a_key_that_is_not_accepted(tmp_path: Path, server: OpenSsh, reach):
    other = keygen(tmp_path / "other")
    error = refusal(reach, AuthenticationRefused, server.target(identity_file=str(other)))
    assert str(other) in error.summary
    assert fingerprint(other) in error.summary


def test_a_key_file_that_is_not_there(tmp_path: Path, server: OpenSsh, reach):
    error = refusal(reach, AuthenticationRefused, server.target(identity_file=str(tmp_path / "none")))
    assert "cannot be read: No such file" in error.summary


class TestJumps:
    """Case 04."""

    @pytest.fixture
    def chain(self, tmp_path: Path):
        with (
            running(tmp_path / "one") as one,
            running(tmp_path / "two") as two,
            running(tmp_path / "far") as far,
        ):
            for hop in (one, two):
                hop.authorize(far.user_key)
            far.known_hosts.write_text("".join(hop.known_hosts.read_text() for hop in (one, two, far)))
            yield one, two, far

    @staticmethod
    def target(chain: tuple[OpenSsh, OpenSsh, OpenSsh], name: str = "gpu-a1", **more: object) -> Target:
        one, two, far = chain
        user = far.target().user
        return far.target(name, proxy_jump=f"{user}@127.0.0.1:{one.port},{user}@127.0.0.1:{two.port}", **more)

    def test_one_connection_to_each_hop_for_all_hosts_behind_it(self, chain):
        targets = {HostName(f"gpu-a{n}"): self.target(chain, f"gpu-a{n}") for n in range(6)}
        transport = SshTransport(targets)
        with ThreadPoolExecutor(6) as pool:
            sessions = list(pool.map(transport.open, targets))
            assert [ask(session, ECHO).stdout for session in sessions] == ["here\n"] * 6
        transport.close()
        assert [hop.log().count("Accepted publickey") for hop in chain] == [1, 1, 6]

    def test_jumps_from_ssh_config(self, chain, tmp_path: Path, reach):
        one, two, far = chain
        config = tmp_path / "config"
        config.write_text(
            "IdentityAgent none\n"
            f"Host first\n HostName 127.0.0.1\n Port {one.port}\n"
            f"Host second\n HostName 127.0.0.1\n Port {two.port}\n ProxyJump first\n"
            f"Host far\n HostName 127.0.0.1\n Port {far.port}\n ProxyJump second\n"
        )
        assert ask(reach(far.target(host="far", port=None, config_file=str(config))), ECHO).stdout == "here\n"
        assert "Accepted publickey" in one.log()

    @pytest.mark.parametrize("broken", [0, 1])
    def test_the_hop_that_fails_is_named(self, chain, reach, broken: int):
        chain[broken].stop()
        error = refusal(reach, HostUnreachable, self.target(chain))
        assert f"jump host {chain[2].target().user}@127.0.0.1:{chain[broken].port}" in error.summary

    def test_a_target_that_fails_behind_its_jumps(self, chain, reach):
        chain[2].stop()
        error = refusal(reach, HostUnreachable, self.target(chain))
        assert f"127.0.0.1:{chain[2].port} (behind 127.0.0.1:{chain[1].port})" in error.summary
        assert "cannot connect" in error.summary

    @pytest.mark.parametrize("changed", [0, 1, 2])
    def test_the_host_key_of_every_hop_is_checked(self, chain, reach, tmp_path: Path, changed: int):
        other = keygen(tmp_path / "other").with_name("other.pub").read_text().split()[1]
        far = chain[2]
        lines = far.known_hosts.read_text().splitlines()
        lines[changed] = " ".join([*lines[changed].split()[:2], other])
        far.known_hosts.write_text("\n".join(lines) + "\n")
        error = refusal(reach, HostKeyChanged, self.target(chain))
        assert f"127.0.0.1:{chain[changed].port}" in error.summary
        assert f"known_hosts:{changed + 1}" in error.summary

    def test_a_password_is_for_the_target_alone(self, chain, reach, tmp_path: Path):
        one = chain[0]
        (one.folder / "authorized_keys").write_text("")
        refusal(reach, AuthenticationRefused, self.target(chain, password=Secret("hunter2hunter2")))
        assert "password" not in one.log()

    def test_a_jump_that_died_is_opened_again(self, chain):
        one = chain[0]
        transport = SshTransport({GPU: self.target(chain, "gpu-01")})
        session = transport.open(GPU)
        assert ask(session, ECHO).code == 0
        for pid in one.sessions():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: isinstance(session.run(ECHO), Exit))
        transport.close()


def test_ipv6(tmp_path: Path, reach):
    """Case 06."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback address")
    with running(tmp_path / "sshd", address="::1") as server:
        assert server.known_hosts.read_text().startswith(f"[::1]:{server.port} ")
        assert ask(reach(server.target()), ECHO).stdout == "here\n"
        server.stop()
        assert f"[::1]:{server.port} refuses connections" in words(
            refusal(reach, HostUnreachable, server.target())
        )


NOISE = "echo '### welcome to the cluster ###'; echo 'quota: 93% used' >&2; "


class TestNoise:
    """Case 08."""

    @pytest.mark.parametrize(
        "after",
        [
            'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"',
            '/bin/sh -c "$SSH_ORIGINAL_COMMAND"; echo bye; exit 0',
            '/bin/sh -c "$SSH_ORIGINAL_COMMAND" 2>&1',
        ],
    )
    def test_answers_are_clean_and_files_arrive(self, tmp_path: Path, reach, after: str):
        script = tmp_path / "login"
        script.write_text(f"#!/bin/sh\n{NOISE}\n{after}\n")
        script.chmod(0o755)
        warnings: list[str] = []
        with running(tmp_path / "sshd", f"ForceCommand {script}") as server:
            session = reach(server.target(), warn=warnings.append)
            answer = ask(session, Command(script='echo "{}"; exit 5', mutates=False))
            assert (answer.code, answer.stdout, answer.stderr) == (5, "{}\n", "")
            assert ask(session, ECHO).stdout == "here\n"
            outcome = session.put(b"content\n", str(tmp_path / "file"), 0o640)
            assert isinstance(outcome, Exit)
            assert outcome.ok
            assert (tmp_path / "file").read_bytes() == b"content\n"
            assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
            # The group that a deadline ends has another number here than our shell.
            lost = session.run(
                Command(
                    argv=(str(tmp_path / "pid"),),
                    script='echo $$ >"$1"; sleep 300',
                    timeout=2.0,
                    mutates=True,
                )
            )
            assert lost == Lost(reason="no answer within 2 s; the remote process was ended", sent=True)
            pid = int((tmp_path / "pid").read_text())
            eventually(lambda: not Path(f"/proc/{pid}").exists())
        assert len(warnings) == 1
        assert "scp and sftp will fail" in warnings[0]

    def test_an_account_without_a_shell(self, tmp_path: Path, reach):
        script = tmp_path / "nologin"
        script.write_text("#!/bin/sh\necho 'This account is currently not available.'\nexit 1\n")
        script.chmod(0o755)
        with running(tmp_path / "sshd", f"ForceCommand {script}") as server:
            outcome = reach(server.target()).run(ECHO)
        assert isinstance(outcome, Lost)
        assert "did not run our script: This account is currently not available." in outcome.reason

    def test_sftp_only(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "ForceCommand internal-sftp") as server:
            outcome = reach(server.target()).run(Command(script="echo x", timeout=20, mutates=False))
        assert isinstance(outcome, Lost)


class CountingClock:
    """Real time, but waiting between attempts is counted instead, and may do something."""

    def __init__(self, during=lambda: None) -> None:
        self.sleeps: list[float] = []
        self._during = during

    def monotonic(self) -> float:
        import time

        return time.monotonic()

    def now(self):
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._during()


class TestLimits:
    """Case 10."""

    def test_a_server_that_takes_no_more(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "MaxStartups 2:100:2") as server:
            clock = CountingClock()
            with occupied(server, 2):
                error = refusal(reach, HostUnreachable, server.target(), clock=clock, dice=random.Random(1))
            assert f"sshd on 127.0.0.1:{server.port} is refusing new sessions (MaxStartups)" in error.summary
            assert len(clock.sleeps) == 2
            assert clock.sleeps[0] != clock.sleeps[1] * 2

    def test_tried_again_when_there_is_room(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "MaxStartups 2:100:2") as server, occupied(server, 2) as sockets:

            def leave() -> None:
                for item in sockets:
                    item.close()
                eventually(lambda: not server.sessions())

            assert ask(reach(server.target(), clock=CountingClock(leave)), ECHO).stdout == "here\n"

    def test_many_at_once_to_one_address(self, tmp_path: Path):
        with running(tmp_path / "sshd", "MaxStartups 10:100:10") as server:
            targets = {HostName(f"g{n}"): server.target(f"g{n}") for n in range(30)}
            transport = SshTransport(targets)
            with ThreadPoolExecutor(30) as pool:
                sessions = list(pool.map(transport.open, targets))
            assert [ask(session, ECHO).code for session in sessions] == [0] * 30
            transport.close()

    def test_a_refused_login_leaves_nothing_open(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "MaxStartups 4:100:4") as server:
            other = keygen(tmp_path / "other")
            files, threads = open_files(), threading.active_count()
            for _ in range(8):
                refusal(reach, AuthenticationRefused, server.target(identity_file=str(other)))
            eventually(lambda: not server.sessions())
            eventually(lambda: threading.active_count() <= threads)
            assert open_files() <= files + 1
            assert ask(reach(server.target()), ECHO).stdout == "here\n"

    def test_a_host_that_allows_few_sessions(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "MaxSessions 2") as server:
            session = reach(server.target())
            with ThreadPoolExecutor(6) as pool:
                outcomes = list(pool.map(session.run, [Command(script="sleep 1; echo x", mutates=False)] * 6))
            assert [isinstance(outcome, Exit) for outcome in outcomes] == [True] * 6

    def test_a_deadline_on_a_host_that_allows_one_session(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "MaxSessions 1") as server:
            outcome = reach(server.target()).run(Command(script="sleep 300", timeout=1.0, mutates=False))
        assert outcome == Lost(reason="no answer within 1 s; the remote process was ended", sent=True)

    def test_a_server_that_says_nothing(self, server: OpenSsh, reach):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(8)
            error = refusal(
                reach, HostUnreachable, server.target(port=silent.getsockname()[1], connect_timeout=1.0)
            )
        assert "said nothing within 1 s" in error.summary

    def test_a_port_that_is_no_ssh(self, server: OpenSsh, reach):
        with socket.socket() as odd:
            odd.bind(("127.0.0.1", 0))
            odd.listen(8)

            def talk() -> None:
                peer, _ = odd.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)

            thread = threading.Thread(target=talk)
            thread.start()
            error = refusal(
                reach, HostUnreachable, server.target(port=odd.getsockname()[1], connect_timeout=5.0)
            )
            thread.join()
        assert error.summary


def occupied(server: OpenSsh, count: int):
    """Connections that do not log in and keep their places."""
    import contextlib

    @contextlib.contextmanager
    def block():
        with contextlib.ExitStack() as stack:
            sockets: list[socket.socket] = []

            def one_more() -> bool:
                item = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                item.settimeout(30)
                # Earlier connections, such as the fixture's own look at the port, may still be counted.
                if item.recv(4) == b"SSH-":
                    sockets.append(item)
                return len(sockets) == count

            eventually(one_more)
            yield sockets

    return block()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestHostKeys:
    """Case 11."""

    @pytest.fixture
    def changed(self, server: OpenSsh, tmp_path: Path) -> Path:
        """known_hosts holds another key, in line 3; that key."""
        old = keygen(tmp_path / "old")
        key = old.with_name("old.pub").read_text().split()[1]
        server.known_hosts.write_text(
            f"# a comment\nbroken line\n[127.0.0.1]:{server.port} ssh-ed25519 {key}\n"
        )
        return old

    def test_changed(self, server: OpenSsh, reach, changed: Path):
        warnings: list[str] = []
        error = refusal(reach, HostKeyChanged, server.target(), warn=warnings.append)
        text = words(error)
        assert fingerprint(changed) in text
        assert fingerprint(server.host_keys["ed25519"]) in text
        assert f"{server.known_hosts}:3" in text
        assert f"gpufleet hosts trust gpu-01 --fingerprint {fingerprint(server.host_keys['ed25519'])}" in text
        assert "publickey" not in server.log()
        assert warnings == [f"{server.known_hosts}:2: not a host key line, skipped"]

    def test_the_command_it_names_forgets_the_old_key(self, server: OpenSsh, reach, changed: Path):
        # ssh-keygen itself touches no file that has a broken line.
        lines = server.known_hosts.read_text().splitlines(keepends=True)
        server.known_hosts.write_text("".join([lines[0], lines[2]]))
        error = refusal(reach, HostKeyChanged, server.target())
        command = next(hint for hint in error.hints if "ssh-keygen" in hint).partition(": ")[2]
        subprocess.run(shlex.split(command), check=True, capture_output=True)
        refusal(reach, HostKeyUnknown, server.target())

    def test_trusting_on_purpose(self, server: OpenSsh, reach):
        server.known_hosts.unlink()
        target = server.target()
        error = refusal(reach, HostKeyUnknown, target)
        assert fingerprint(server.host_keys["ed25519"]) in error.summary
        transport = SshTransport({GPU: target})
        key = transport.offered_key(GPU)
        assert key.fingerprint == fingerprint(server.host_keys["ed25519"])
        assert transport.known_hosts_files(GPU) == (str(server.known_hosts),)
        add_line(server.known_hosts, line_for(key.host, key.port, key.key_type, key.key))
        transport.close()
        assert server.known_hosts.stat().st_mode & 0o777 == 0o600
        assert ask(reach(target), ECHO).stdout == "here\n"

    @pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
    def test_the_server_is_asked_for_the_type_that_is_known(self, tmp_path: Path, reach, kind: str):
        with running(tmp_path / "all", kinds=("ed25519", "ecdsa", "rsa")) as server:
            server.know(kind)
            assert ask(reach(server.target()), ECHO).stdout == "here\n"

    def test_known_by_a_type_that_the_server_no_longer_has(self, server: OpenSsh, reach, tmp_path: Path):
        rsa = keygen(tmp_path / "old", kind="rsa").with_name("old.pub").read_text().split()[1]
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} ssh-rsa {rsa}\n")
        error = refusal(reach, HostKeyUnknown, server.target())
        assert "known by its ssh-rsa key alone" in error.summary

    def test_revoked(self, server: OpenSsh, reach):
        line = server.known_hosts.read_text()
        server.known_hosts.write_text(f"{line}@revoked * {' '.join(line.split()[1:])}\n")
        error = refusal(reach, HostKeyChanged, server.target())
        assert "revoked" in error.summary
        assert f"{server.known_hosts}:2" in error.summary

    def test_hashed_and_wildcard_lines_and_an_authority(self, server: OpenSsh, reach):
        line = server.known_hosts.read_text()
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", str(server.known_hosts)], check=True, capture_output=True
        )
        hashed = server.known_hosts.read_text()
        assert hashed.startswith("|1|")
        key = " ".join(line.split()[1:3])
        for text in (hashed, f"[127.0.0.*]:{server.port} {key}\n", f"@cert-authority * {key}\n{line}"):
            server.known_hosts.write_text(text)
            assert ask(reach(server.target()), ECHO).stdout == "here\n"

    def test_an_alias(self, server: OpenSsh, reach, tmp_path: Path):
        key = " ".join(server.known_hosts.read_text().split()[1:3])
        server.known_hosts.write_text(f"the-alias {key}\n")
        config = tmp_path / "config"
        config.write_text("IdentityAgent none\nHostKeyAlias the-alias\n")
        assert ask(reach(server.target(config_file=str(config))), ECHO).stdout == "here\n"


class TestLosses:
    def test_a_connection_cut_under_a_command(self, server: OpenSsh, reach, tmp_path: Path):
        session = reach(server.target())
        count = tmp_path / "count"
        command = Command(argv=(str(count),), script='echo ran >>"$1"; sleep 300', mutates=True)
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(session.run, command)
            eventually(count.exists)
            for pid in server.sessions():
                for one in (*children(pid), pid):
                    os.kill(one, signal.SIGKILL)
            outcome = future.result(60)
        assert outcome == Lost(reason="the connection was lost", sent=True)
        # A new command opens the connection again; the old one was not sent again.
        assert ask(session, ECHO).stdout == "here\n"
        assert count.read_text() == "ran\n"

    def test_a_server_that_is_gone(self, server: OpenSsh, reach):
        session = reach(server.target())
        server.stop()
        outcome = session.run(Command(script="true", timeout=20, mutates=True))
        assert isinstance(outcome, Lost)
        assert not outcome.sent
        error = refusal(reach, HostUnreachable, server.target())
        assert "refuses connections" in error.summary

    def test_a_server_that_is_frozen_under_a_command(self, server: OpenSsh, reach, tmp_path: Path):
        session = reach(server.target())
        begun = tmp_path / "begun"
        frozen: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(
                session.run,
                Command(argv=(str(begun),), script='echo >"$1"; sleep 5; echo x', timeout=3.0, mutates=True),
            )
            eventually(begun.exists)
            frozen = [one for pid in server.sessions() for one in (pid, *children(pid))]
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            outcome = future.result(90)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(outcome, Lost)
        assert outcome.sent
        assert "may still be running" in outcome.reason

    def test_a_shell_that_is_killed(self, server: OpenSsh, reach):
        outcome = reach(server.target()).run(Command(script="kill -KILL $$", mutates=True))
        assert outcome == Lost(reason="the remote shell was ended before it could answer", sent=True)


class TestProxyCommand:
    def test_it_carries_the_connection(self, server: OpenSsh, reach, tmp_path: Path):
        config = tmp_path / "config"
        config.write_text(
            "IdentityAgent none\nHost gpu\n"
            f" HostName 127.0.0.1\n Port {server.port}\n"
            f" ProxyCommand ssh -F none -i {server.user_key} -o UserKnownHostsFile={server.known_hosts} -p %p -W %h:%p %h\n"
        )
        session = reach(server.target(host="gpu", port=None, config_file=str(config)))
        assert ask(session, ECHO).stdout == "here\n"

    def test_what_it_complains_of_is_shown(self, server: OpenSsh, reach, tmp_path: Path):
        config = tmp_path / "config"
        config.write_text("IdentityAgent none\nProxyCommand echo 'no way to %h' >&2\n")
        error = refusal(reach, HostUnreachable, server.target(config_file=str(config)))
        assert "ProxyCommand: no way to 127.0.0.1" in error.summary


def test_a_configuration_that_ssh_cannot_read(server: OpenSsh, reach, tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Prot 22\n")
    error = refusal(reach, HostUnreachable, server.target(config_file=str(config)))
    assert f"{config}" in error.summary
    assert "line 1" in error.summary


def test_no_secret_in_any_error(tmp_path: Path, server: OpenSsh, reach):
    secret = "Zq9" * 8
    key = encrypted(tmp_path, server, "openssh")
    wishes: dict[str, Any] = {
        "passphrase": Secret(secret),
        "password": Secret(secret),
        "sudo_password": Secret(secret),
    }
    texts = [
        words(refusal(reach, AuthenticationRefused, server.target(identity_file=str(key), **wishes))),
        words(
            refusal(
                reach,
                AuthenticationRefused,
                server.target(identity_file=str(keygen(tmp_path / "o")), **(wishes | {"passphrase": None})),
            )
        ),
    ]
    session = reach(server.target(**wishes))
    texts.append(
        repr(session.run(Command(argv=(Secret(secret),), script="sleep 300", timeout=1.0, mutates=False)))
    )
    texts.append(repr(server.target(**wishes)))
    texts.append(server.log())
    assert secret not in "\n".join(texts)
