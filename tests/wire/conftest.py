"""Fixtures that several wire tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.remote.ssh.transport import SshTransport
from gpufleet.remote.target import Target
from tests.wire.openssh import running


@pytest.fixture
def sshd(tmp_path: Path):
    """A real OpenSSH server, plainly configured."""
    with running(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def reach():
    """Open a target over SSH; whatever was opened is closed."""
    transports = []

    def reach(target: Target, **kwargs):
        transport = SshTransport({target.name: target}, **kwargs)
        transports.append(transport)
        return transport.open(target.name)

    yield reach
    for transport in transports:
        transport.close()
