"""The transport of this machine against the contract of all transports."""

from __future__ import annotations

import getpass
import os
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.errors import SecretUnresolved, SelectionError
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.local import LocalTransport
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.target import Target
from gpufleet.remote.target import Way as How
from tests.kit.transport_kit import TransportKit, Way, eventually

HERE = HostName("here")


def may_become_root() -> bool:
    if os.getuid() == 0:
        return True
    try:
        return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class TestLocal(TransportKit):
    @pytest.fixture
    def way(self, tmp_path: Path):
        transport = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)})
        lacks = frozenset() if may_become_root() else frozenset({"become"})
        yield Way(transport, HERE, str(tmp_path), lacks)
        transport.close()


def test_a_file_of_any_size_takes_little_memory(tmp_path: Path):
    size = 256 << 20
    with (tmp_path / "large").open("wb") as file:
        file.truncate(size)
    session = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)}).open(HERE)
    command = Command(
        argv=(str(size),),
        script='gpufleet_want 0 0 "$1"; head -c "$1" | wc -c',
        files=(str(tmp_path / "large"),),
        timeout=100.0,
        mutates=True,
    )
    tracemalloc.start()
    try:
        outcome = session.run(command)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, Exit)
    assert outcome.stdout.strip() == str(size)
    assert peak < 8 << 20


def test_who_it_is():
    session = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)}).open(HERE)
    outcome = session.run(Command(argv=("id", "-un"), mutates=False))
    assert outcome == Exit(code=0, stdout=f"{getpass.getuser()}\n")


def test_an_unknown_host():
    with pytest.raises(SelectionError, match="no host nowhere"):
        LocalTransport({}).open(HostName("nowhere"))


class Unresolved(Secret[str]):
    """A reference that leads nowhere."""

    def reveal(self) -> str:
        raise SecretUnresolved("${env:NONE}: the variable is not set")


def test_a_password_that_cannot_be_had_is_lost_and_nothing_was_sent(tmp_path: Path):
    target = Target(name=HERE, way=How.LOCAL, sudo_password=Unresolved(""))
    session = LocalTransport({HERE: target}).open(HERE)
    outcome = session.run(Command(argv=("touch", str(tmp_path / "x")), mutates=True, become=True))
    assert outcome == Lost(reason="${env:NONE}: the variable is not set", sent=False)
    assert isinstance(session.run(Command(script="true", mutates=False)), Exit)


def test_no_process_shows_a_secret(tmp_path: Path, monkeypatch):
    """Neither in its arguments nor in its environment, while the command runs."""
    secret = "hf_" + "Zq9" * 8
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("INNOCENT", f"Bearer {secret}")
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    session = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)}).open(HERE)
    command = Command(
        argv=(str(begun), str(go_on), Secret(secret)),
        script='cat; printf "%s" "$3"; env; echo >"$1"; while ! [ -e "$2" ]; do sleep 0.05; done',
        stdin=Secret(secret.encode()),
        mutates=False,
    )
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.run, command)
        eventually(begun.exists)
        others = [pid for pid in processes() if pid != os.getpid()]
        shells = [pid for pid in others if "/bin/sh\0-s" in read(pid, "cmdline")]
        shown = [read(pid, name) for pid in others for name in ("cmdline", "environ")]
        go_on.touch()
        outcome = future.result(60)
    assert shells
    assert isinstance(outcome, Exit)
    assert outcome.stdout.count(secret) == 2
    assert not [text for text in shown if secret in text]


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def test_a_shell_that_is_killed_is_lost_and_was_sent():
    session = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)}).open(HERE)
    outcome = session.run(Command(script="kill -KILL $$", mutates=True))
    assert isinstance(outcome, Lost)
    assert outcome.sent
