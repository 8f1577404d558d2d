"""The sudo part of the frame, run by a real shell against a `sudo` of our own that keeps sudo's contract."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpufleet.errors import SudoRefused
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit
from gpufleet.remote.sudo import SudoFailure, classify, refusal

MARKER = "gpufleet-fedcba9876543210"

FAKE_SUDO = r"""#!/bin/sh
# Keeps what real sudo does with -n, -k, -S and -p, and notes each call.
printf '%s\n' "$*" >>"$FAKE/calls"
ask=no; never=no
while [ $# -gt 0 ]; do
  case $1 in -n) never=yes; shift ;; -k) shift ;; -S) ask=yes; shift ;; -p) shift 2 ;; *) break ;; esac
done
case $FAKE_MODE in
  free) exec "$@" ;;
  tty) echo 'sudo: sorry, you must have a tty to run sudo' >&2; exit 1 ;;
esac
[ $never = yes ] && { echo 'sudo: a password is required' >&2; exit 1; }
[ $ask = yes ] || { echo 'sudo: a terminal is required to read the password' >&2; exit 1; }
IFS= read -r line
echo attempt >>"$FAKE/attempts"
[ "$FAKE_MODE" = unknown ] && { echo 'ops is not in the sudoers file.' >&2; exit 1; }
if [ "$line" = 'right '"'"'"$(x)' ]; then exec "$@"; fi
echo 'Sorry, try again.' >&2
IFS= read -r line && echo attempt >>"$FAKE/attempts"
echo 'sudo: no password was provided' >&2; echo 'sudo: 1 incorrect password attempt' >&2; exit 1
"""
PASSWORD = "right '\"$(x)"


@pytest.fixture
def ask(tmp_path: Path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sudo").write_text(FAKE_SUDO)
    (programs / "sudo").chmod(0o755)
    # The frame skips sudo for root, and tests often run as root.
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)

    def run(mode: str, command: Command, password: str | None) -> Exit:
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "FAKE": str(tmp_path), "FAKE_MODE": mode}
        text = frame(command, MARKER, sudo_password=Secret(password) if password is not None else None)
        result = subprocess.run(
            ["/bin/sh", "-s"], input=text, env=environment, capture_output=True, check=False
        )
        seen = unframe(result.stdout, result.stderr, MARKER, become=True)
        assert seen.exit is not None
        assert seen.pid is not None
        assert (seen.root_pid is None) == bool(seen.exit.sudo_refused)
        return seen.exit

    return run


HOSTILE = "a'b\"c$(d)\n`e`!"
COMMAND = Command(
    argv=(HOSTILE,), script='printf "<%s>" "$1"; cat; exit 3', stdin=b"\0in\n", mutates=True, become=True
)


@pytest.mark.parametrize("password", [None, PASSWORD])
def test_without_a_password_when_sudo_wants_none(ask, tmp_path: Path, password: str | None):
    answer = ask("free", COMMAND, password)
    assert (answer.code, answer.stdout, answer.sudo_refused) == (3, f"<{HOSTILE}>\0in\n", "")
    assert " -S " not in (tmp_path / "calls").read_text()


def test_with_the_password_as_the_first_line(ask, tmp_path: Path):
    answer = ask("password", COMMAND, PASSWORD)
    assert (answer.code, answer.stdout, answer.sudo_refused) == (3, f"<{HOSTILE}>\0in\n", "")
    assert PASSWORD not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("mode", "password", "failure"),
    [
        ("password", None, SudoFailure.PASSWORD_NEEDED),
        ("password", "wrong", SudoFailure.WRONG_PASSWORD),
        ("unknown", "any", SudoFailure.NOT_IN_SUDOERS),
        ("tty", None, SudoFailure.TTY_REQUIRED),
        ("tty", "any", SudoFailure.TTY_REQUIRED),
    ],
)
def test_each_refusal_has_its_reason_and_ran_nothing(
    ask, tmp_path: Path, mode: str, password: str | None, failure: SudoFailure
):
    touched = tmp_path / "touched"
    answer = ask(mode, Command(argv=("touch", str(touched)), mutates=True, become=True), password)
    assert answer.sudo_refused == failure.value
    assert not answer.ok
    assert not touched.exists()
    error = refusal(answer, "gpu-01")
    assert isinstance(error, SudoRefused)
    assert error.hints
    assert error.where == "gpu-01"


def test_a_wrong_password_costs_one_attempt(ask, tmp_path: Path):
    ask("password", COMMAND, "wrong")
    assert (tmp_path / "attempts").read_text().splitlines() == ["attempt"]


def test_no_sudo_on_the_host():
    assert classify("/bin/sh: 9: sudo: not found\n") is SudoFailure.NOT_INSTALLED


def test_a_failing_command_is_no_refusal(ask):
    answer = ask(
        "free",
        Command(script="echo 'sudo: a password is required' >&2; exit 1", mutates=True, become=True),
        None,
    )
    assert answer.code == 1
    assert refusal(answer, "gpu-01") is None


def test_root_needs_no_sudo(tmp_path: Path):
    (tmp_path / "id").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "id").chmod(0o755)
    (tmp_path / "cat").symlink_to("/bin/cat")
    text = frame(Command(script="echo as root", mutates=False, become=True), MARKER)
    result = subprocess.run(
        ["/bin/sh", "-s"], input=text, env={"PATH": str(tmp_path)}, capture_output=True, check=False
    )
    seen = unframe(result.stdout, result.stderr, MARKER, become=True)
    assert seen.exit == Exit(code=0, stdout="as root\n")
