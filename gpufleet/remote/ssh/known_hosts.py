"""The lines of known_hosts files, read one by one, and what they say of a key that a host shows.

A line that cannot be read is skipped with a warning instead of making the whole file useless. A `@revoked` line
refuses its key wherever its pattern matches; `@cert-authority` lines are skipped, as host certificates are not
checked here. Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
import shlex
from dataclasses import dataclass
from typing import TypeAlias

DEFAULT_PORT = 22
_HASHED = re.compile(r"\|1\|([A-Za-z0-9+/=]+)\|([A-Za-z0-9+/=]+)")
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line that names a key."""

    names: str
    key_type: str
    key: bytes
    revoked: bool = False
    file: str
    line: int

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def matches(self, *names: str) -> bool:
        """Whether this line speaks of the host with these `names_of`; a negation of any of them counts."""
        names = tuple(name.lower() for name in names)
        if self.names.startswith("|"):
            hashed = _HASHED.fullmatch(self.names)
            if hashed is not None:
                return any(_same_hash(hashed[1], hashed[2], name) for name in names)
        found = False
        for pattern in self.names.lower().split(","):
            bare = pattern.removeprefix("!")
            # Most lines name one host: a regular expression for each of them made a fleet's logins quadratic.
            hit = any(_glob(bare, name) for name in names) if "*" in bare or "?" in bare else bare in names
            if hit and bare != pattern:
                return False
            found = found or hit
        return found


@dataclass(frozen=True, slots=True)
class Parsed:
    """Entries in the order of the file, and a line of text for each line that was skipped."""

    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Matches:
    """The key stands in known_hosts."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Changed:
    """Another key of the same type stands there."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Revoked:
    """The key is marked as revoked."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class NotKnown:
    """No line speaks for this key; `others` are lines of this host with keys of other types."""

    others: tuple[Entry, ...] = ()


Verdict: TypeAlias = Matches | Changed | Revoked | NotKnown


def parse(text: str, file: str) -> Parsed:
    """Every line of one file."""
    entries: list[Entry] = []
    warnings: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker == "@cert-authority":
            warnings.append(f"{file}:{number}: host certificates are not checked, the line is skipped")
            continue
        key = _decode(words[2]) if len(words) >= 3 and marker in ("", "@revoked") else None
        if key is None or _key_type(key) != words[1]:
            warnings.append(f"{file}:{number}: not a host key line, skipped")
            continue
        entries.append(
            Entry(names=words[0], key_type=words[1], key=key, revoked=bool(marker), file=file, line=number)
        )
    return Parsed(tuple(entries), tuple(warnings))


def names_of(host: str, port: int) -> tuple[str, ...]:
    """The names a host may have in a file, the usual one first: bare for port 22, else in brackets with its port."""
    bracketed = f"[{host}]:{port}"
    return (host, bracketed) if port == DEFAULT_PORT else (bracketed,)


def lookup(entries: tuple[Entry, ...], host: str, port: int, key_type: str, key: bytes) -> Verdict:
    """What the files say of this key. On another port than 22 a line without a port counts when its key matches."""
    mine = _of_host(entries, names_of(host, port))
    bare = _of_host(entries, (host,)) if port != DEFAULT_PORT else ()
    for entry in (*mine, *bare):
        if entry.revoked and entry.key == key:
            return Revoked(entry)
    valid = tuple(entry for entry in mine if not entry.revoked)
    for entry in valid:
        if entry.key == key:
            return Matches(entry)
    for entry in valid:
        if entry.key_type == key_type:
            return Changed(entry)
    if not valid:
        for entry in bare:
            if entry.key == key:
                return Matches(entry)
    return NotKnown(valid)


def preferred_algorithms(
    entries: tuple[Entry, ...], host: str, port: int, offered: tuple[str, ...]
) -> tuple[str, ...]:
    """`offered` with the algorithms of keys that are known for this host first, so that the server shows one of those.

    Without this, a host known by its RSA key alone would show its Ed25519 key and look changed.
    """
    mine = _of_host(entries, names_of(host, port))
    if not mine and port != DEFAULT_PORT:
        mine = _of_host(entries, (host,))
    known = {
        name
        for entry in mine
        if not entry.revoked
        for name in _ALGORITHMS.get(entry.key_type, (entry.key_type,))
    }
    return (*(name for name in offered if name in known), *(name for name in offered if name not in known))


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode("ascii").rstrip("=")


def line_for(host: str, port: int, key_type: str, key: bytes) -> str:
    """The line to add to a file, without its newline."""
    return f"{names_of(host, port)[0].lower()} {key_type} {base64.b64encode(key).decode('ascii')}"


def removal_command(entry: Entry, host: str, port: int) -> str:
    """What an operator types to forget the key in `entry`."""
    return f"ssh-keygen -f {shlex.quote(entry.file)} -R {shlex.quote(names_of(host, port)[0])}"


def _of_host(entries: tuple[Entry, ...], names: tuple[str, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry.matches(*names))


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _key_type(key: bytes) -> str:
    """A key's own type: a length-prefixed name stands in front of it (RFC 4253, section 6.6)."""
    length = int.from_bytes(key[:4], "big")
    return key[4 : 4 + length].decode("ascii", "replace")


def _same_hash(salt: str, digest: str, name: str) -> bool:
    raw_salt, raw_digest = _decode(salt), _decode(digest)
    if raw_salt is None or raw_digest is None:
        return False
    return hmac.compare_digest(hmac.new(raw_salt, name.encode("utf-8"), hashlib.sha1).digest(), raw_digest)


def _glob(pattern: str, name: str) -> bool:
    return _expression(pattern).fullmatch(name) is not None


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Only `*` and `?` are special; brackets stand for themselves."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern))
