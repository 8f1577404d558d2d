"""`gpufleet hosts trust` against a real OpenSSH server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire.openssh import OpenSsh, fingerprint, keygen, running

pytestmark = pytest.mark.wire
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path):
    with running(tmp_path / "sshd") as server:
        server.known_hosts.unlink()
        target = server.target()
        (tmp_path / "inventory.yaml").write_text(
            "version: 1\nhosts:\n  gpu-01:\n"
            f"    address: {target.host}\n    port: {target.port}\n    user: {target.user}\n"
            f"    identity_file: {target.identity_file}\n    known_hosts: {target.known_hosts}\n"
            f"    ssh_config: {target.config_file}\n"
        )
        yield server


def gpufleet(server: OpenSsh, *words: str) -> tuple[int, dict[str, object]]:
    ended = subprocess.run(
        [sys.executable, "-m", "gpufleet", "-o", "json", "hosts", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=server.folder.parent,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    answer = json.loads(ended.stdout)
    assert isinstance(answer, dict)
    return ended.returncode, answer


def shown(server: OpenSsh) -> str:
    return fingerprint(server.host_keys["ed25519"])


def test_a_key_whose_fingerprint_is_given(server):
    status, answer = gpufleet(server, "run", "gpu-01", "--", "true")
    assert status == 7, "an unknown host key was accepted"
    status, answer = gpufleet(server, "trust", "gpu-01", "--fingerprint", shown(server))
    assert (status, answer["outcome"]) == (0, "ok")
    assert server.known_hosts.stat().st_mode & 0o777 == 0o600
    assert gpufleet(server, "run", "gpu-01", "--", "true")[0] == 0
    status, answer = gpufleet(server, "trust", "gpu-01")
    assert (status, answer["outcome"]) == (0, "no_change")
    assert len(server.known_hosts.read_text().splitlines()) == 1


def test_another_fingerprint_is_refused(server):
    status, answer = gpufleet(server, "trust", "gpu-01", "--fingerprint", "SHA256:" + "A" * 43)
    assert status == 7
    assert shown(server) in str(answer["error"])
    assert not server.known_hosts.exists()


def test_nobody_to_ask(server):
    status, answer = gpufleet(server, "trust", "gpu-01")
    assert status == 2
    assert "--fingerprint" in str(answer["error"])
    assert shown(server) in str(answer["error"])
    assert not server.known_hosts.exists()


def test_a_changed_key_is_never_replaced(server, tmp_path):
    other = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()
    before = f"[{server.address}]:{server.port} {other[0]} {other[1]}\n"
    server.known_hosts.write_text(before)
    status, answer = gpufleet(server, "trust", "gpu-01", "--fingerprint", shown(server))
    assert status == 7
    assert answer["error"]["code"] == "host-key-changed"  # type: ignore[index] # JSON
    assert "ssh-keygen -f" in str(answer["error"])
    assert server.known_hosts.read_text() == before


def test_facts_over_ssh_in_one_exec(server):
    server.know()
    status, answer = gpufleet(server, "facts", "gpu-01")
    assert status == 0, answer
    host = answer["hosts"][0]  # type: ignore[index] # JSON
    assert host["kernel"]
    assert host["noisy_login"] is False
    assert server.log().count("Starting session: command") == 1
