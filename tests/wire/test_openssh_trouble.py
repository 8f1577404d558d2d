"""Noise, limits and losses, with a real OpenSSH server."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpufleet.deploy.staging import commands as staging
from gpufleet.deploy.staging import here as from_here
from gpufleet.deploy.staging.model import Kind, Source
from gpufleet.errors import AuthenticationRefused, HostUnreachable
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.offer import Offer
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.ssh.transport import SshTransport
from tests.kit.transport_kit import ask, eventually, reason_of_ending
from tests.wire.openssh import (
    ECHO,
    CountingClock,
    OpenSsh,
    children,
    keygen,
    refusal,
    running,
)

pytestmark = pytest.mark.wire


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
            endless = Command(argv=(str(tmp_path / "pid"),), script='echo $$ >"$1"; sleep 300', mutates=True)
            assert reason_of_ending(session, endless) == "the remote process was ended"
            pid = int((tmp_path / "pid").read_text())
            eventually(lambda: not Path(f"/proc/{pid}").exists())
        assert session.noisy
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

    def test_a_shell_that_prints_what_it_reads(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "ForceCommand cat") as server:
            outcome = reach(server.target()).run(
                Command(argv=(Secret("Zq9" * 8),), script="echo x", mutates=False)
            )
        assert outcome == Lost(reason="the login shell prints our script instead of running it", sent=True)

    def test_sftp_only(self, tmp_path: Path, reach):
        with running(tmp_path / "sshd", "ForceCommand internal-sftp") as server:
            outcome = reach(server.target()).run(Command(script="echo x", timeout=20, mutates=False))
        assert isinstance(outcome, Lost)


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
        with running(tmp_path / "sshd", "MaxStartups 20:100:20") as server:
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
            session = reach(server.target())
            assert (
                reason_of_ending(session, Command(script="sleep 300", mutates=False))
                == "the remote process was ended"
            )

    def test_a_server_that_says_nothing(self, sshd: OpenSsh, reach):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(8)
            error = refusal(
                reach, HostUnreachable, sshd.target(port=silent.getsockname()[1], connect_timeout=1.0)
            )
        assert "said nothing within 1 s" in error.summary

    def test_a_port_that_is_no_ssh(self, sshd: OpenSsh, reach):
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
                reach, HostUnreachable, sshd.target(port=odd.getsockname()[1], connect_timeout=5.0)
            )
            thread.join()
        assert error.summary


def occupied(sshd: OpenSsh, count: int):
    """Connections that do not log in and keep their places."""
    import contextlib

    @contextlib.contextmanager
    def block():
        with contextlib.ExitStack() as stack:
            sockets: list[socket.socket] = []

            def one_more() -> bool:
                item = stack.enter_context(socket.create_connection(("127.0.0.1", sshd.port)))
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


# What sshd leaves behind when it is killed; it ends when the test has, and at the latest after a minute.
RUNS_ON = """
echo ran >>"$1"
turn=0
while [ ! -e "$1.stop" ] && [ $turn -lt 300 ]; do sleep 0.2; turn=$((turn+1)); done
"""


class TestLosses:
    def test_a_connection_cut_under_a_command(self, sshd: OpenSsh, reach, tmp_path: Path):
        session = reach(sshd.target())
        count = tmp_path / "count"
        command = Command(argv=(str(count),), script=RUNS_ON, mutates=True)
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(session.run, command)
            eventually(count.exists)
            for pid in sshd.sessions():
                for one in (*children(pid), pid):
                    os.kill(one, signal.SIGKILL)
            outcome = future.result(60)
        assert outcome == Lost(reason="the connection was lost", sent=True)
        # A new command opens the connection again; the old one was not sent again.
        assert ask(session, ECHO).stdout == "here\n"
        assert count.read_text() == "ran\n"
        (tmp_path / "count.stop").touch()

    def test_a_copy_that_was_cut_goes_on_at_the_byte_that_arrived(
        self, sshd: OpenSsh, reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        session, content = reach(sshd.target()), bytes(range(256)) * 30_000
        (tmp_path / "model.safetensors").write_bytes(content)
        given: list[tuple[int, int]] = []
        pieces = Offer.pieces

        def noted(offer: Offer, number: int, offset: int, count: int) -> Iterator[bytes]:
            given.append((offset, count))
            return pieces(offer, number, offset, count)

        monkeypatch.setattr(Offer, "pieces", noted)
        source = Source(kind=Kind.HERE, model="m", place=str(tmp_path), include=("*.safetensors",))
        final, begun = tmp_path / "store" / "m@1", tmp_path / "begun"
        whole = staging.fetch(
            str(final), "run-1", from_here.fetches(from_here.listing(source, datetime.now(UTC)))
        )
        reads = 'head -c "$((size - have))" >>"$incoming"'
        assert reads in whole.script
        stops = f"{{ head -c 3000000; echo >'{begun}'; sleep 3; }} >>\"$incoming\""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(session.run, replace(whole, script=whole.script.replace(reads, stops)))
            eventually(begun.exists)
            for pid in sshd.sessions():
                for one in (*children(pid), pid):
                    os.kill(one, signal.SIGKILL)
            outcome = future.result(60)
        assert outcome == Lost(reason="the connection was lost", sent=True)
        assert ask(session, whole) == Exit(code=0)
        assert given == [(0, len(content)), (3_000_000, len(content) - 3_000_000)]
        assert (final / "model.safetensors").read_bytes() == content

    def test_a_server_that_is_gone(self, sshd: OpenSsh, reach):
        session = reach(sshd.target())
        sshd.stop()
        outcome = session.run(Command(script="true", timeout=20, mutates=True))
        assert isinstance(outcome, Lost)
        assert not outcome.sent
        error = refusal(reach, HostUnreachable, sshd.target())
        assert "refuses connections" in error.summary

    def test_a_server_that_is_frozen_under_a_command(self, sshd: OpenSsh, reach, tmp_path: Path):
        session = reach(sshd.target())
        begun = tmp_path / "begun"
        frozen: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(
                session.run,
                Command(
                    argv=(str(begun),), script='echo >"$1"; sleep 20; echo x', timeout=10.0, mutates=True
                ),
            )
            eventually(begun.exists)
            frozen = [one for pid in sshd.sessions() for one in (pid, *children(pid))]
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            outcome = future.result(90)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(outcome, Lost)
        assert outcome.sent
        assert "may still be running" in outcome.reason

    def test_a_shell_that_is_killed(self, sshd: OpenSsh, reach):
        outcome = reach(sshd.target()).run(Command(script="kill -KILL $$", mutates=True))
        assert outcome == Lost(reason="the remote shell was ended before it could answer", sent=True)
