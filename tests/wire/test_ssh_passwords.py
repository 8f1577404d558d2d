"""Passwords over SSH, with a server of paramiko's own, as OpenSSH wants real accounts for them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_PARTIALLY_SUCCESSFUL, AUTH_SUCCESSFUL

from gpufleet.errors import AuthenticationRefused
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.ssh.known_hosts import line_for
from gpufleet.remote.target import Target
from tests.wire.openssh import TOOLS, keygen, refusal, words

pytestmark = pytest.mark.wire
PASSWORD = "right horse battery"


class Accounts(paramiko.ServerInterface):
    """What one server accepts: `methods` are offered, `first` must succeed before the password counts."""

    def __init__(self, methods: str, *, needs_key: bool = False) -> None:
        self.methods = methods
        self.needs_key = needs_key
        self.tried: list[str] = []

    def get_allowed_auths(self, username):
        return self.methods

    def check_auth_publickey(self, username, key):
        self.tried.append("publickey")
        if not self.needs_key:
            return AUTH_FAILED
        self.methods = "password"
        return AUTH_PARTIALLY_SUCCESSFUL

    def check_auth_password(self, username, password):
        self.tried.append("password")
        if "password" not in self.methods or password != PASSWORD:
            return AUTH_FAILED
        return AUTH_SUCCESSFUL

    def check_auth_interactive(self, username, submethods):
        self.tried.append("keyboard-interactive")
        return paramiko.server.InteractiveQuery("", "", ("Password: ", False))

    def check_auth_interactive_response(self, responses):
        return AUTH_SUCCESSFUL if responses == [PASSWORD] else AUTH_FAILED


@contextlib.contextmanager
def serving(accounts: Accounts, folder: Path) -> Iterator[Target]:
    """One connection is served; gives how to reach it."""
    if not TOOLS:
        pytest.skip("ssh-keygen is not installed")
    key = paramiko.ECDSAKey.generate()
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        port = listener.getsockname()[1]

        def serve() -> None:
            peer, _ = listener.accept()
            server = paramiko.Transport(peer)
            stack.callback(server.close)
            server.add_server_key(key)
            server.start_server(server=accounts, event=threading.Event())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        known = folder / "known_hosts"
        known.write_text(line_for("127.0.0.1", port, key.get_name(), key.asbytes()) + "\n")
        config = folder / "config"
        config.write_text("IdentityAgent none\n")
        yield Target(
            name=HostName("gpu-01"),
            host="127.0.0.1",
            port=port,
            user="ops",
            identity_file=str(keygen(folder / "id")),
            known_hosts=str(known),
            config_file=str(config),
            password=Secret(PASSWORD),
            connect_timeout=20.0,
        )
        thread.join(30)


@pytest.mark.parametrize(
    "methods", ["password", "publickey,password", "keyboard-interactive", "publickey,keyboard-interactive"]
)
def test_the_password_is_used_in_the_way_that_the_server_offers(tmp_path: Path, reach, methods: str):
    accounts = Accounts(methods)
    with serving(accounts, tmp_path) as target:
        reach(target)
    assert accounts.tried[-1] in methods


def test_a_key_and_then_a_password(tmp_path: Path, reach):
    accounts = Accounts("publickey", needs_key=True)
    with serving(accounts, tmp_path) as target:
        reach(target)
    assert accounts.tried[-1] == "password"
    assert "publickey" in accounts.tried


def test_a_wrong_password(tmp_path: Path, reach):
    from dataclasses import replace

    with serving(Accounts("password,keyboard-interactive"), tmp_path) as target:
        error = refusal(reach, AuthenticationRefused, replace(target, password=Secret("wrong-secret")))
    assert "the password" in error.summary
    assert "wrong-secret" not in words(error)


def test_a_server_that_also_wants_a_password_names_it(tmp_path: Path, reach):
    from dataclasses import replace

    with serving(Accounts("publickey", needs_key=True), tmp_path) as target:
        error = refusal(reach, AuthenticationRefused, replace(target, password=None))
    assert "also wants password" in error.summary
