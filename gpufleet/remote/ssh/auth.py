"""Which keys are offered to a server, and the offering.

Keys are chosen and opened before anything is connected, so that a missing passphrase costs no network and no
attempt. When somebody named an identity, that key alone is offered: servers close the connection after a few wrong
ones, and an agent may hold many.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import paramiko
from paramiko.agent import AgentKey, AgentSSH

from gpufleet.errors import AuthenticationRefused
from gpufleet.paths import expanded
from gpufleet.redact import Secret
from gpufleet.remote.ssh import keys
from gpufleet.remote.ssh.known_hosts import fingerprint
from gpufleet.remote.ssh.options import SshOptions
from gpufleet.remote.target import Target

PASSPHRASE_FILE = "GPUFLEET_SSH_PASSPHRASE_FILE"  # noqa: S105 a name, not a password

AskPassphrase = Callable[[str], Secret[str] | None]
"""Asks a person for the passphrase of the key at this path; None when there is nobody to ask."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One key to offer, and how it is named in messages."""

    label: str
    key: paramiko.PKey


class _Agent(AgentSSH):
    """An agent behind a socket path, with a deadline; paramiko's own knows the environment's agent alone."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._socket.connect(path)
        self._connect(self._socket)  # type: ignore[attr-defined] # the stubs leave it out

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def agent_keys(options: SshOptions) -> Iterator[tuple[AgentKey, ...]]:
    """The agent's keys, usable inside the `with` block; none when there is no agent or it does not answer."""
    path = options.identity_agent
    if path == "" or (path or "").startswith("$"):
        path = os.environ.get((path or "")[1:].strip("{}") or "SSH_AUTH_SOCK")
    if not path:
        yield ()
        return
    with contextlib.ExitStack() as stack:
        found: tuple[AgentKey, ...] = ()
        try:
            agent = _Agent(str(expanded(path)), options.connect_timeout)
            stack.callback(agent.close)
            found = tuple(agent.get_keys())
        except (OSError, paramiko.SSHException):
            # Like ssh: an agent that is gone is no agent.
            found = ()
        yield found


class KeyRing:
    """Private keys by path, each opened once. Safe to use from several threads."""

    def __init__(self, ask: AskPassphrase | None = None) -> None:
        self._ask = ask
        self._open: dict[tuple[str, Secret[str] | None], paramiko.PKey] = {}
        self._asked: dict[str, Secret[str] | None] = {}
        self._lock = threading.Lock()

    def offers(self, options: SshOptions, target: Target, agent: tuple[AgentKey, ...]) -> list[Offer]:
        """The keys to offer, best first. Raises `AuthenticationRefused` when the named one cannot be used."""
        found: list[Offer] = []
        if not options.identity_named:
            found += [Offer(f"agent key {fingerprint(key.asbytes())}", _as_pkey(key)) for key in agent]
        held = {key.asbytes() for key in agent}
        for path in options.identity_files:
            by_inventory = path == target.identity_file
            offer = self._of_file(
                path, target, agent, quiet=not options.identity_named, must_exist=by_inventory
            )
            if offer is not None and (options.identity_named or offer.key.asbytes() not in held):
                found.append(offer)
        return found

    def _of_file(
        self, path: str, target: Target, agent: tuple[AgentKey, ...], *, quiet: bool, must_exist: bool
    ) -> Offer | None:
        place = expanded(path)
        try:
            content = place.read_bytes()
        except OSError as wrong:
            if must_exist:
                raise AuthenticationRefused(
                    f"the key file {path} cannot be read: {wrong.strerror}",
                    where=target.name,
                    hints=("correct `identity_file`",),
                ) from None
            content = _public_half(place)
            if not content:
                return None
        seen = keys.inspect(content)
        if seen is None:
            if quiet:
                return None
            raise AuthenticationRefused(
                f"{path} is not a private key in a format that is known here",
                where=target.name,
                hints=("`ssh-keygen -y -f FILE` tells whether OpenSSH can read it",),
            )
        if seen.private and not seen.encrypted:
            return self._opened(path, None, target, quiet=quiet)
        public = seen.public or keys.public_blob(_public_half(place).decode("ascii", "replace"))
        for key in agent:
            if public is not None and key.asbytes() == public:
                return Offer(f"agent key of {path} ({fingerprint(public)})", _as_pkey(key))
        if not seen.private:
            return None
        passphrase = self._passphrase(path, target, quiet=quiet)
        if passphrase is None:
            if quiet:
                return None
            raise needs_passphrase(path, target)
        return self._opened(path, passphrase, target, quiet=quiet)

    def _passphrase(self, path: str, target: Target, *, quiet: bool) -> Secret[str] | None:
        given = target.passphrase or passphrase_of_file(target)
        if given is not None:
            return given
        if quiet or self._ask is None:
            return None
        with self._lock:
            if path not in self._asked:
                self._asked[path] = self._ask(path)
            return self._asked[path]

    def _opened(
        self, path: str, passphrase: Secret[str] | None, target: Target, *, quiet: bool
    ) -> Offer | None:
        # Bytes, whatever paramiko's stubs say: the cryptography library takes nothing else. Revealed out here, since
        # a reference that leads nowhere is an error of its own.
        secret = passphrase.reveal().encode() if passphrase is not None else None
        with self._lock:
            key = self._open.get((path, passphrase))
            if key is None:
                try:
                    key = paramiko.PKey.from_path(expanded(path), cast("str | None", secret))
                except Exception as wrong:  # noqa: BLE001 paramiko lets many libraries' exceptions through
                    if quiet:
                        return None
                    raise _unusable(path, passphrase, target, wrong) from None
                self._open[path, passphrase] = key
        return Offer(f"{path} ({fingerprint(key.asbytes())})", key)


def passphrase_of_file(target: Target) -> Secret[str] | None:
    """The first line of the file that GPUFLEET_SSH_PASSPHRASE_FILE names; None when it names none."""
    path = os.environ.get(PASSPHRASE_FILE)
    if not path:
        return None
    try:
        lines = expanded(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise AuthenticationRefused(
            f"the file {path} cannot be read", where=target.name, hints=(f"correct {PASSPHRASE_FILE}",)
        ) from None
    return Secret(lines[0], reference=f"${{file:{path}}}") if lines else None


def needs_passphrase(path: str, target: Target) -> AuthenticationRefused:
    """The one message for a key that stays shut."""
    return AuthenticationRefused(
        f"key {path} is passphrase-protected",
        where=target.name,
        hints=(
            f"add it to ssh-agent: ssh-add {path}",
            f"or name a file with the passphrase in {PASSPHRASE_FILE}",
        ),
    )


def _unusable(
    path: str, passphrase: Secret[str] | None, target: Target, wrong: Exception
) -> AuthenticationRefused:
    if passphrase is not None:
        return AuthenticationRefused(
            f"the passphrase does not open key {path}",
            where=target.name,
            hints=(f"try it: ssh-keygen -y -f {path}",),
        )
    return AuthenticationRefused(
        f"key {path} cannot be used ({type(wrong).__name__})",
        where=target.name,
        hints=("Ed25519, ECDSA and RSA keys work; keys on hardware tokens need ssh-agent",),
    )


def _public_half(path: Path) -> bytes:
    try:
        return path.with_name(path.name + ".pub").read_bytes()
    except OSError:
        return b""


def _as_pkey(key: AgentKey) -> paramiko.PKey:
    return cast("paramiko.PKey", key)


def authenticate(
    connection: paramiko.Transport, options: SshOptions, offers: list[Offer], target: Target, place: str
) -> None:
    """Log in with the first key, or the password, that the server accepts; raises `AuthenticationRefused`."""
    allowed: list[str] = []
    tried: list[str] = []
    password = None if options.is_jump else target.password
    for offer in offers:
        tried.append(offer.label)
        try:
            allowed = connection.auth_publickey(options.user, offer.key)
        except paramiko.BadAuthenticationType as wrong:
            allowed = wrong.allowed_types
        except (paramiko.SSHException, EOFError, OSError) as wrong:
            if not connection.is_active():
                raise _cut_off(len(tried), target, place) from None
            if "timeout" in str(wrong).lower():
                raise AuthenticationRefused(
                    f"{place} did not answer to authentication within {options.connect_timeout:g} s",
                    where=target.name,
                ) from None
            continue
        if not allowed:
            return
        break
    if password is not None:
        tried.append("the password")
        if _by_password(connection, options.user, password):
            return
    raise _refused(options, tried, allowed, target, place)


def _by_password(connection: paramiko.Transport, user: str, password: Secret[str]) -> bool:
    try:
        return not connection.auth_password(user, password.reveal(), fallback=False)
    except paramiko.BadAuthenticationType as wrong:
        if "keyboard-interactive" not in wrong.allowed_types:
            return False
    except (paramiko.SSHException, EOFError, OSError):
        return False

    def answer(_title: str, _instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
        # One hidden prompt is the password's; a question that is shown wants something else.
        return [password.reveal() for _, shown in prompts if not shown]

    try:
        return not connection.auth_interactive(user, answer)
    except (paramiko.SSHException, EOFError, OSError):
        return False


def _cut_off(count: int, target: Target, place: str) -> AuthenticationRefused:
    return AuthenticationRefused(
        f"{place} closed the connection after {count} key{'s were' if count != 1 else ' was'} offered",
        where=target.name,
        hints=("name the right key with `identity_file`; servers close after MaxAuthTries keys, usually 6",),
    )


def _refused(
    options: SshOptions, tried: list[str], allowed: list[str], target: Target, place: str
) -> AuthenticationRefused:
    offered = f"refused {', '.join(tried)}" if tried else "was offered no key: none was found"
    also = f"; the server also wants {', '.join(allowed)}" if allowed and tried else ""
    return AuthenticationRefused(
        f"{place} {offered} for user {options.user}{also}",
        where=target.name,
        hints=(
            "name the user and the key with `user` and `identity_file`, or load the key into ssh-agent",
            f"compare with: ssh -p {options.port} {options.user}@{options.hostname} true",
        ),
    )
