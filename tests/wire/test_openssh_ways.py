"""Ways to a real OpenSSH server: jump hosts, IPv6, proxy commands, host keys."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.errors import AuthenticationRefused, HostKeyChanged, HostKeyUnknown, HostUnreachable
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit
from gpufleet.remote.ssh.known_hosts import line_for
from gpufleet.remote.ssh.known_hosts_file import add_line
from gpufleet.remote.ssh.quiet import QuietConnection
from gpufleet.remote.ssh.transport import SshTransport
from gpufleet.remote.target import Target
from tests.kit.transport_kit import ask, eventually
from tests.wire.openssh import (
    ECHO,
    GPU,
    OpenSsh,
    fingerprint,
    keygen,
    refusal,
    running,
    words,
)

pytestmark = pytest.mark.wire


def connections() -> list[threading.Thread]:
    """The threads of connections that live."""
    return [one for one in threading.enumerate() if isinstance(one, QuietConnection)]


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

    def test_closed_connections_wait_for_no_look_to_end(self, chain, monkeypatch):
        monkeypatch.setattr(QuietConnection, "_active_check_timeout", 3600.0)
        target = self.target(chain)
        transport = SshTransport({target.name: target})
        assert ask(transport.open(target.name), ECHO).code == 0
        assert len(connections()) == 3
        transport.close()
        eventually(lambda: not connections())

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

    def test_trust_goes_hop_by_hop(self, chain, reach):
        far = chain[2]
        far.known_hosts.write_text("")
        target = self.target(chain)
        for hop in chain:
            error = refusal(reach, HostKeyUnknown, target)
            transport = SshTransport({target.name: target})
            offered = transport.offered_key(target.name)
            transport.close()
            assert (offered.port, offered.fingerprint) == (hop.port, fingerprint(hop.host_keys["ed25519"]))
            assert offered.fingerprint in error.summary
            add_line(far.known_hosts, line_for(offered.host, offered.port, offered.key_type, offered.key))
        assert ask(reach(target), ECHO).stdout == "here\n"

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


class TestHostKeys:
    """Case 11."""

    @pytest.fixture
    def changed(self, sshd: OpenSsh, tmp_path: Path) -> Path:
        """known_hosts holds another key, in line 3; that key."""
        old = keygen(tmp_path / "old")
        key = old.with_name("old.pub").read_text().split()[1]
        sshd.known_hosts.write_text(f"# a comment\nbroken line\n[127.0.0.1]:{sshd.port} ssh-ed25519 {key}\n")
        return old

    def test_changed(self, sshd: OpenSsh, reach, changed: Path):
        warnings: list[str] = []
        error = refusal(reach, HostKeyChanged, sshd.target(), warn=warnings.append)
        text = words(error)
        assert fingerprint(changed) in text
        assert fingerprint(sshd.host_keys["ed25519"]) in text
        assert f"{sshd.known_hosts}:3" in text
        assert f"gpufleet hosts trust gpu-01 --fingerprint {fingerprint(sshd.host_keys['ed25519'])}" in text
        assert "publickey" not in sshd.log()
        assert warnings == [f"{sshd.known_hosts}:2: not a host key line, skipped"]

    def test_the_command_it_names_forgets_the_old_key(self, sshd: OpenSsh, reach, changed: Path):
        # ssh-keygen itself touches no file that has a broken line.
        lines = sshd.known_hosts.read_text().splitlines(keepends=True)
        sshd.known_hosts.write_text("".join([lines[0], lines[2]]))
        error = refusal(reach, HostKeyChanged, sshd.target())
        command = next(hint for hint in error.hints if "ssh-keygen" in hint).partition(": ")[2]
        subprocess.run(shlex.split(command), check=True, capture_output=True)
        refusal(reach, HostKeyUnknown, sshd.target())

    def test_trusting_on_purpose(self, sshd: OpenSsh, reach):
        sshd.known_hosts.unlink()
        target = sshd.target()
        error = refusal(reach, HostKeyUnknown, target)
        assert fingerprint(sshd.host_keys["ed25519"]) in error.summary
        transport = SshTransport({GPU: target})
        key = transport.offered_key(GPU)
        assert key.fingerprint == fingerprint(sshd.host_keys["ed25519"])
        assert transport.known_hosts_files(GPU) == (str(sshd.known_hosts),)
        add_line(sshd.known_hosts, line_for(key.host, key.port, key.key_type, key.key))
        transport.close()
        assert sshd.known_hosts.stat().st_mode & 0o777 == 0o600
        assert ask(reach(target), ECHO).stdout == "here\n"

    @pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
    def test_the_server_is_asked_for_the_type_that_is_known(self, tmp_path: Path, reach, kind: str):
        with running(tmp_path / "all", kinds=("ed25519", "ecdsa", "rsa")) as server:
            server.know(kind)
            assert ask(reach(server.target()), ECHO).stdout == "here\n"

    def test_known_by_a_type_that_the_server_no_longer_has(self, sshd: OpenSsh, reach, tmp_path: Path):
        rsa = keygen(tmp_path / "old", kind="rsa").with_name("old.pub").read_text().split()[1]
        sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} ssh-rsa {rsa}\n")
        error = refusal(reach, HostKeyUnknown, sshd.target())
        assert "known by its ssh-rsa key alone" in error.summary

    def test_revoked(self, sshd: OpenSsh, reach):
        line = sshd.known_hosts.read_text()
        sshd.known_hosts.write_text(f"{line}@revoked * {' '.join(line.split()[1:])}\n")
        error = refusal(reach, HostKeyChanged, sshd.target())
        assert "revoked" in error.summary
        assert f"{sshd.known_hosts}:2" in error.summary

    def test_hashed_and_wildcard_lines_and_an_authority(self, sshd: OpenSsh, reach):
        line = sshd.known_hosts.read_text()
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", str(sshd.known_hosts)], check=True, capture_output=True
        )
        hashed = sshd.known_hosts.read_text()
        assert hashed.startswith("|1|")
        key = " ".join(line.split()[1:3])
        for text in (hashed, f"[127.0.0.*]:{sshd.port} {key}\n", f"@cert-authority * {key}\n{line}"):
            sshd.known_hosts.write_text(text)
            assert ask(reach(sshd.target()), ECHO).stdout == "here\n"

    def test_an_alias(self, sshd: OpenSsh, reach, tmp_path: Path):
        key = " ".join(sshd.known_hosts.read_text().split()[1:3])
        sshd.known_hosts.write_text(f"the-alias {key}\n")
        config = tmp_path / "config"
        config.write_text("IdentityAgent none\nHostKeyAlias the-alias\n")
        assert ask(reach(sshd.target(config_file=str(config))), ECHO).stdout == "here\n"


class TestProxyCommand:
    @staticmethod
    def config(sshd: OpenSsh) -> str:
        return (
            "IdentityAgent none\nHost gpu\n"
            f" HostName 127.0.0.1\n Port {sshd.port}\n"
            f" ProxyCommand ssh -F none -i {sshd.user_key} -o UserKnownHostsFile={sshd.known_hosts} -p %p -W %h:%p %h\n"
        )

    def test_it_carries_the_connection(self, sshd: OpenSsh, reach, tmp_path: Path):
        config = tmp_path / "config"
        config.write_text(self.config(sshd))
        session = reach(sshd.target(host="gpu", port=None, config_file=str(config)))
        assert ask(session, ECHO).stdout == "here\n"

    def test_a_closed_connection_waits_for_no_look_to_end(self, sshd: OpenSsh, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(QuietConnection, "_active_check_timeout", 3600.0)
        config = tmp_path / "config"
        config.write_text(self.config(sshd))
        target = sshd.target(host="gpu", port=None, config_file=str(config))
        transport = SshTransport({target.name: target})
        assert ask(transport.open(target.name), ECHO).code == 0
        transport.close()
        eventually(lambda: not connections())

    def test_what_it_complains_of_is_shown(self, sshd: OpenSsh, reach, tmp_path: Path):
        config = tmp_path / "config"
        config.write_text("IdentityAgent none\nProxyCommand echo 'no way to %h' >&2\n")
        error = refusal(reach, HostUnreachable, sshd.target(config_file=str(config)))
        assert "ProxyCommand: no way to 127.0.0.1" in error.summary


def test_a_configuration_that_ssh_cannot_read(sshd: OpenSsh, reach, tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Prot 22\n")
    error = refusal(reach, HostUnreachable, sshd.target(config_file=str(config)))
    assert f"{config}" in error.summary
    assert "line 1" in error.summary


@pytest.mark.parametrize("cipher", ["aes256-gcm@openssh.com", "aes192-ctr"])
def test_a_server_with_one_cipher(tmp_path: Path, reach, cipher: str):
    with running(tmp_path / "sshd", f"Ciphers {cipher}") as server:
        assert ask(reach(server.target()), ECHO).stdout == "here\n"


def test_a_server_with_old_ciphers_alone_is_refused(tmp_path: Path, reach):
    with running(tmp_path / "sshd", "Ciphers aes128-cbc") as server:
        error = refusal(reach, HostUnreachable, server.target())
    assert "share no algorithm" in error.summary


def test_large_answers_outlive_a_new_key_exchange(tmp_path: Path, reach):
    with running(tmp_path / "sshd", "RekeyLimit 256K") as server:
        outcome = ask(
            reach(server.target()), Command(script="head -c 3000000 /dev/zero | tr '\\0' x", mutates=False)
        )
    assert outcome.stdout == "x" * 3_000_000
