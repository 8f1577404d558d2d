"""Private keys, passphrases and agents, with a real OpenSSH server."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import AuthenticationRefused, SecretUnresolved
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.ssh.transport import SshTransport
from tests.kit.transport_kit import ask
from tests.unit.remote.test_local import Unresolved
from tests.wire.openssh import (
    ECHO,
    PASSPHRASE,
    OpenSsh,
    agent,
    encrypted,
    fingerprint,
    keygen,
    refusal,
    running,
    words,
)

pytestmark = pytest.mark.wire


class TestPassphrase:
    """Case 01."""

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_none_given(self, tmp_path: Path, sshd: OpenSsh, reach, kind: str):
        key = encrypted(tmp_path, sshd, kind)
        before = sshd.log().count("Connection from")
        error = refusal(reach, AuthenticationRefused, sshd.target(identity_file=str(key)))
        assert f"{key} is passphrase-protected" in error.summary
        assert f"ssh-add {key}" in words(error)
        assert "GPUFLEET_SSH_PASSPHRASE_FILE" in words(error)
        assert sshd.log().count("Connection from") == before

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_the_right_one(self, tmp_path: Path, sshd: OpenSsh, reach, kind: str):
        key = encrypted(tmp_path, sshd, kind)
        session = reach(sshd.target(identity_file=str(key), passphrase=Secret(PASSPHRASE)))
        assert ask(session, ECHO).stdout == "here\n"

    def test_from_the_file_that_the_environment_names(
        self, tmp_path: Path, sshd: OpenSsh, reach, monkeypatch
    ):
        key = encrypted(tmp_path, sshd, "openssh")
        file = tmp_path / "passphrase"
        file.write_text(PASSPHRASE + "\n")
        monkeypatch.setenv("GPUFLEET_SSH_PASSPHRASE_FILE", str(file))
        assert ask(reach(sshd.target(identity_file=str(key))), ECHO).stdout == "here\n"
        file.unlink()
        error = refusal(reach, AuthenticationRefused, sshd.target(identity_file=str(key)))
        assert str(file) in error.summary

    def test_a_reference_that_leads_nowhere_is_its_own_error(self, tmp_path: Path, sshd: OpenSsh, reach):
        key = encrypted(tmp_path, sshd, "openssh")
        with pytest.raises(SecretUnresolved):
            reach(sshd.target(identity_file=str(key), passphrase=Unresolved("")))

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_a_wrong_one(self, tmp_path: Path, sshd: OpenSsh, reach, kind: str):
        key = encrypted(tmp_path, sshd, kind)
        error = refusal(
            reach,
            AuthenticationRefused,
            sshd.target(identity_file=str(key), passphrase=Secret("hunter2hunter2")),
        )
        assert f"the passphrase does not open key {key}" in error.summary
        assert "hunter2" not in words(error)

    @pytest.mark.parametrize("kind", ["pem", "openssh"])
    def test_the_agent_holds_the_key(self, tmp_path: Path, sshd: OpenSsh, reach, kind: str):
        key = keygen(tmp_path / "id", kind="rsa" if kind == "pem" else "ed25519", pem=kind == "pem")
        sshd.authorize(key)
        with agent(key) as path:
            form = ["-m", "PEM"] if kind == "pem" else []
            subprocess.run(["ssh-keygen", "-q", "-p", *form, "-N", PASSPHRASE, "-f", str(key)], check=True)
            config = tmp_path / "config"
            config.write_text(f"IdentityAgent {path}\n")
            session = reach(sshd.target(identity_file=str(key), config_file=str(config)))
            assert ask(session, ECHO).stdout == "here\n"

    def test_a_person_is_asked_once(self, tmp_path: Path, sshd: OpenSsh):
        key = encrypted(tmp_path, sshd, "openssh")
        asked: list[str] = []

        def answer(path: str) -> Secret[str]:
            asked.append(path)
            return Secret(PASSPHRASE)

        targets = {HostName(name): sshd.target(name, identity_file=str(key)) for name in ("a", "b", "c")}
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


def test_a_key_that_is_not_accepted(tmp_path: Path, sshd: OpenSsh, reach):
    other = keygen(tmp_path / "other")
    error = refusal(reach, AuthenticationRefused, sshd.target(identity_file=str(other)))
    assert str(other) in error.summary
    assert fingerprint(other) in error.summary


def test_a_key_file_that_is_not_there(tmp_path: Path, sshd: OpenSsh, reach):
    error = refusal(reach, AuthenticationRefused, sshd.target(identity_file=str(tmp_path / "none")))
    assert "cannot be read: No such file" in error.summary


def test_no_secret_in_any_error(tmp_path: Path, sshd: OpenSsh, reach):
    secret = "Zq9" * 8
    key = encrypted(tmp_path, sshd, "openssh")
    wishes: dict[str, Any] = {
        "passphrase": Secret(secret),
        "password": Secret(secret),
        "sudo_password": Secret(secret),
    }
    texts = [
        words(refusal(reach, AuthenticationRefused, sshd.target(identity_file=str(key), **wishes))),
        words(
            refusal(
                reach,
                AuthenticationRefused,
                sshd.target(identity_file=str(keygen(tmp_path / "o")), **(wishes | {"passphrase": None})),
            )
        ),
    ]
    session = reach(sshd.target(**wishes))
    texts.append(
        repr(session.run(Command(argv=(Secret(secret),), script="sleep 30", timeout=1.0, mutates=False)))
    )
    texts.append(repr(sshd.target(**wishes)))
    texts.append(sshd.log())
    assert secret not in "\n".join(texts)
