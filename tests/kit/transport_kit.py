"""What every Transport must do, whatever carries the words.

A test module plugs its transport in by a fixture and takes the suite over as a whole:

    from tests.kit.transport_kit import *          # or: class TestX(TransportKit)

`TransportKit` needs one fixture, `way`, that gives a `Way`: a transport, a host it can open, and which parts of the
suite its far end can show (a simulated host has no signals).
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.transport import Session, Transport

PATIENCE = 60.0


@dataclass(frozen=True)
class Way:
    """One transport under test.

    Attributes:
        host: a host that it opens.
        scratch: a folder on the far end that may be written.
        lacks: names of abilities the far end does not have: `signals`, `processes`, `binary`, `become`.
    """

    transport: Transport
    host: HostName
    scratch: str
    lacks: frozenset[str] = field(default_factory=frozenset)

    def need(self, ability: str) -> None:
        if ability in self.lacks:
            pytest.skip(f"the far end has no {ability}")


HOSTILE = [
    "", " ", "a b", "'", '"', "'\"'\"'", "\\", "\\'", "$(echo x)", "`echo x`", "$HOME", "${x:-y}", "!", "!!", "#", "~",
    "*", "?", "[a]", "{a,b}", ";", "&", "|", "<", ">", "\n", "a\nb\n", "\t", "-n", "--", "%s", "\\n", "ü", "日本語", "🙂",
    "if", "A=b", "EOF", "a" * 3000,
]  # fmt: skip


class TransportKit:
    """The suite."""

    @pytest.fixture
    def session(self, way: Way):
        session = way.transport.open(way.host)
        yield session
        session.close()

    def test_both_streams_and_the_status(self, session: Session):
        answer = ask(session, Command(script="echo out; echo err >&2; exit 3", mutates=False))
        assert (answer.code, answer.stdout, answer.stderr) == (3, "out\n", "err\n")

    def test_output_without_a_last_newline(self, session: Session):
        answer = ask(session, Command(script="printf out", mutates=False))
        assert (answer.code, answer.stdout, answer.stderr) == (0, "out", "")

    @pytest.mark.parametrize("code", [0, 1, 2, 42, 125, 255])
    def test_exit_status(self, session: Session, code: int):
        assert ask(session, Command(argv=(str(code),), script='exit "$1"', mutates=False)).code == code

    def test_an_unknown_program_is_127(self, session: Session):
        answer = ask(session, Command(argv=("gpufleet-no-such-program",), mutates=False))
        assert answer.code == 127
        assert "not found" in answer.stderr

    def test_a_signal_is_128_and_its_number(self, way: Way, session: Session):
        way.need("signals")
        script = "sh -c 'kill -TERM $$'"
        assert ask(session, Command(script=script, mutates=False)).code == 143

    def test_every_argument_arrives_as_it_was(self, session: Session):
        script = 'for word in "$@"; do printf "<%s>" "$word"; done; printf "%s" "$#"'
        answer = ask(session, Command(argv=tuple(HOSTILE), script=script, mutates=False))
        assert answer.stdout == "".join(f"<{word}>" for word in HOSTILE) + str(len(HOSTILE))

    def test_a_program_receives_its_arguments(self, session: Session):
        answer = ask(session, Command(argv=("printf", "%s|%s", "a b", Secret("c'$d")), mutates=False))
        assert answer.stdout == "a b|c'$d"

    def test_standard_input(self, session: Session):
        assert ask(session, Command(argv=("cat",), stdin=b"one\ntwo", mutates=False)).stdout == "one\ntwo"

    def test_no_standard_input_is_an_empty_one(self, session: Session):
        assert ask(session, Command(argv=("cat",), mutates=False)) == Exit(code=0)

    def test_binary_standard_input(self, way: Way, session: Session):
        way.need("binary")
        content = bytes(range(256)) * 64
        answer = ask(session, Command(script="sha256sum | cut -c 1-64", stdin=content, mutates=False))
        assert answer.stdout.strip() == hashlib.sha256(content).hexdigest()

    def test_a_megabyte_on_both_streams_at_once(self, session: Session):
        script = """
        line=0123456789012345678901234567890123456789012345678901234567890123
        block=$line$line$line$line$line$line$line$line$line$line$line$line$line$line$line$line
        count=0
        while [ $count -lt 1024 ]; do echo "$block" >&2; echo "$block"; count=$((count+1)); done
        """
        answer = ask(session, Command(script=script, timeout=PATIENCE, mutates=False))
        assert (len(answer.stdout), len(answer.stderr)) == (1025 * 1024, 1025 * 1024)

    def test_twelve_commands_at_once_on_one_session(self, session: Session):
        def one(number: int) -> str:
            return ask(
                session, Command(argv=(str(number),), script='sleep 1; echo "$1"', mutates=False)
            ).stdout

        with ThreadPoolExecutor(12) as pool:
            assert list(pool.map(one, range(12))) == [f"{number}\n" for number in range(12)]

    def test_a_deadline_is_lost_and_says_so(self, session: Session):
        outcome = session.run(Command(script="sleep 30", timeout=1.0, mutates=False))
        assert isinstance(outcome, Lost)
        assert outcome.sent
        assert "1 s" in outcome.reason
        # The session goes on.
        assert ask(session, Command(script="echo still here", mutates=False)).stdout == "still here\n"

    def test_a_deadline_ends_the_remote_process(self, way: Way, session: Session):
        way.need("processes")
        mark = f"{way.scratch}/mark-{uuid.uuid4().hex}"
        script = 'echo $$ >"$1"; sh -c "sleep 300; echo survived" & sleep 300; echo survived'
        endless = Command(argv=(mark,), script=script, mutates=True)
        assert reason_of_ending(session, endless) == "the remote process was ended"
        look = Command(argv=(mark,), script='kill -0 "-$(cat "$1")" 2>/dev/null && echo alive', mutates=False)
        eventually(lambda: ask(session, look).stdout == "")

    def test_a_child_in_the_background_does_not_hold_the_answer(self, way: Way, session: Session):
        way.need("processes")
        answer = ask(session, Command(script="sleep 40 & echo started", timeout=30.0, mutates=False))
        assert answer.stdout == "started\n"

    def test_put_writes_whole_files_with_their_mode(self, way: Way, session: Session):
        path = f"{way.scratch}/a file's name-{uuid.uuid4().hex}"
        for content, mode in ((b"first\n", 0o600), (b"", 0o644), (b"KEY=va'lue\n$(x)\n" * 2000, 0o600)):
            outcome = session.put(content, path, mode)
            assert isinstance(outcome, Exit)
            assert outcome.ok, outcome
            answer = ask(session, Command(argv=(path,), script='stat -c %a "$1"; cat "$1"', mutates=False))
            assert answer.stdout == f"{mode:o}\n{content.decode()}"
        listing = ask(session, Command(argv=(way.scratch,), script='ls -a "$1"', mutates=False)).stdout
        assert ".gpufleet." not in listing

    def test_put_of_the_home_directory(self, session: Session):
        name = f".gpufleet-kit-{uuid.uuid4().hex}"
        outcome = session.put(b"x", f"~/{name}", 0o600)
        assert isinstance(outcome, Exit)
        assert outcome.ok, outcome
        answer = ask(session, Command(argv=(name,), script='cat "$HOME/$1"; rm "$HOME/$1"', mutates=True))
        assert answer.stdout == "x"

    def test_put_into_no_folder_fails_and_says_where(self, way: Way, session: Session):
        outcome = session.put(b"x", f"{way.scratch}/no/such/folder", 0o600)
        assert isinstance(outcome, Exit)
        assert not outcome.ok
        assert "no/such/folder" in outcome.stderr

    def test_files_are_given_from_the_byte_that_is_asked_for(self, session: Session, tmp_path: Path):
        large = bytes(range(256)) * 4000
        files = [tmp_path / "large", tmp_path / "small"]
        for path, content in zip(files, (large, b"small"), strict=True):
            path.write_bytes(content)
        script = """
        gpufleet_want 1 2 3; head -c 3; echo
        gpufleet_want 0 1000 1023000; head -c 1023000 | sha256sum | cut -c 1-64
        gpufleet_want 1 5 0; head -c 0
        gpufleet_want 1 0 5; head -c 5; echo; echo "$1" >&2; exit 3
        """
        command = Command(
            argv=("a b",),
            script=script,
            files=tuple(map(str, files)),
            timeout=PATIENCE,
            mutates=True,
        )
        answer = ask(session, command)
        digest = hashlib.sha256(large[1000:]).hexdigest()
        assert (answer.code, answer.stdout, answer.stderr) == (3, f"all\n{digest}\nsmall\n", "a b\n")

    def test_a_file_that_cannot_be_read_or_was_not_offered_ends_the_input(
        self, session: Session, tmp_path: Path
    ):
        (tmp_path / "short").write_bytes(b"")
        for number, what in (
            (0, "cannot be read here: no such file"),
            (1, "is 10 bytes shorter"),
            (2, "asked for file 2 of 2"),
        ):
            command = Command(
                argv=(str(number),),
                script='gpufleet_want "$1" 0 10; head -c 10; echo over; exit 1',
                files=(str(tmp_path / "gone"), str(tmp_path / "short")),
                timeout=PATIENCE,
                mutates=True,
            )
            answer = ask(session, command)
            assert (answer.code, answer.stdout) == (1, "over\n")
            assert what in answer.stderr

    def test_a_command_that_ends_while_it_is_given_a_file_is_answered(self, session: Session, tmp_path: Path):
        (tmp_path / "large").write_bytes(bytes(8 << 20))
        command = Command(
            script="gpufleet_want 0 0 8388608; head -c 100 | wc -c; echo full >&2; exit 1",
            files=(str(tmp_path / "large"),),
            timeout=PATIENCE,
            mutates=True,
        )
        answer = ask(session, command)
        assert (answer.code, answer.stdout.strip(), answer.stderr) == (1, "100", "full\n")
        assert ask(session, Command(script="echo on", mutates=False)).stdout == "on\n"

    def test_become(self, way: Way, session: Session):
        way.need("become")
        answer = ask(
            session,
            Command(
                argv=("a 'b'",),
                script='id -u; echo "$1"; cat; exit 4',
                stdin=b"in",
                mutates=False,
                become=True,
            ),
        )
        assert (answer.code, answer.stdout) == (4, "0\na 'b'\nin")

    def test_a_closed_session_refuses_and_sends_nothing(self, way: Way):
        session = way.transport.open(way.host)
        session.close()
        session.close()
        outcome = session.run(Command(argv=("true",), mutates=True))
        assert isinstance(outcome, Lost)
        assert not outcome.sent

    def test_two_sessions_to_one_host(self, way: Way):
        first, second = way.transport.open(way.host), way.transport.open(way.host)
        try:
            first.close()
            assert ask(second, Command(script="echo two", mutates=False)).stdout == "two\n"
        finally:
            second.close()

    def test_secrets_show_in_no_outcome(self, session: Session):
        secret = Secret("hf_" + "Z" * 30)
        outcome = session.run(Command(argv=(secret,), script="sleep 30", timeout=1.0, mutates=False))
        assert secret.reveal() not in repr(outcome)


def ask(session: Session, command: Command) -> Exit:
    """The answer, which must come."""
    outcome = session.run(command)
    assert isinstance(outcome, Exit), outcome
    return outcome


def reason_of_ending(session: Session, command: Command) -> str:
    """Why a command that never ends was lost, with a deadline long enough for this machine to have begun it."""
    reason = ""
    for timeout in (2.0, 10.0, 40.0):
        outcome = session.run(replace(command, timeout=timeout))
        assert isinstance(outcome, Lost), outcome
        assert outcome.sent
        reason = outcome.reason.removeprefix(f"no answer within {timeout:g} s; ")
        if "was ended" in reason:
            break
    return reason


def eventually(check, seconds: float = PATIENCE) -> None:
    """Poll until true; for what another process does in its own time."""
    event = threading.Event()
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come true"
        event.wait(0.1)
