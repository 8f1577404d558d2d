"""The transport of this machine against the contract of all transports."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path

import pytest

from gpufleet.errors import SelectionError
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.local import LocalTransport
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.target import Target
from gpufleet.remote.target import Way as How
from tests.kit.transport_kit import TransportKit, Way

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


def test_who_it_is():
    session = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)}).open(HERE)
    outcome = session.run(Command(argv=("id", "-un"), mutates=False))
    assert outcome == Exit(code=0, stdout=f"{getpass.getuser()}\n")


def test_an_unknown_host():
    with pytest.raises(SelectionError, match="no host nowhere"):
        LocalTransport({}).open(HostName("nowhere"))


def test_a_shell_that_is_killed_is_lost_and_was_sent():
    session = LocalTransport({HERE: Target(name=HERE, way=How.LOCAL)}).open(HERE)
    outcome = session.run(Command(script="kill -KILL $$", mutates=True))
    assert isinstance(outcome, Lost)
    assert outcome.sent
