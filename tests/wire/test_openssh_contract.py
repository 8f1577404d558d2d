"""The SSH transport against the contract of all transports, with a real OpenSSH server."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.names import HostName
from gpufleet.remote.ssh.transport import SshTransport
from tests.kit.transport_kit import TransportKit, Way
from tests.unit.remote.test_local import may_become_root
from tests.wire.openssh import running

pytestmark = pytest.mark.wire
GPU = HostName("gpu-01")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


class TestOpenSsh(TransportKit):
    @pytest.fixture
    def way(self, server, tmp_path: Path):
        transport = SshTransport({GPU: server.target()})
        yield Way(transport, GPU, str(tmp_path), frozenset() if may_become_root() else frozenset({"become"}))
        transport.close()
