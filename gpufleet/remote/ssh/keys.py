"""What a private key file tells without its passphrase: whether it needs one, and its public half.

Formats: OpenSSH's PROTOCOL.key; RFC 1421 headers in older PEM files; PKCS #8.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """One key file.

    Attributes:
        encrypted: whether a passphrase is needed.
        public: the public key in wire form, when the file tells it.
        private: False for a public key file, which stands for a key in the agent.
    """

    encrypted: bool
    public: bytes | None = None
    private: bool = True


def inspect(content: bytes) -> KeyFile | None:
    """What kind of key file this is; None when it is none."""
    text = content.decode("ascii", "replace").strip()
    if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):
        return _openssh(text)
    if text.startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----"):
        return KeyFile(encrypted=True)
    if text.startswith("-----BEGIN ") and "PRIVATE KEY-----" in text.splitlines()[0]:
        return KeyFile(encrypted="Proc-Type: 4,ENCRYPTED" in text)
    public = public_blob(text)
    return KeyFile(encrypted=False, public=public, private=False) if public is not None else None


def public_blob(text: str) -> bytes | None:
    """The key in a line such as `ssh-ed25519 AAAA... comment`."""
    words = text.split()
    if len(words) < 2 or not words[0].startswith(("ssh-", "ecdsa-", "sk-")):
        return None
    try:
        return base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        return None


def _openssh(text: str) -> KeyFile | None:
    body = "".join(line for line in text.splitlines() if not line.startswith("-----"))
    try:
        raw = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
    magic = b"openssh-key-v1\0"
    if not raw.startswith(magic):
        return None
    rest = raw[len(magic) :]
    _cipher, rest = _string(rest)
    derivation, rest = _string(rest)
    _options, rest = _string(rest)
    public, _ = _string(rest[4:])  # behind the number of keys
    return KeyFile(encrypted=derivation != b"none", public=public or None)


def _string(raw: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(raw[:4], "big")
    return raw[4 : 4 + length], raw[4 + length :]
