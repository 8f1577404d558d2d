"""TLS to engines, whose names are verified; and for clients: one certificate, read again when its file changes; a bad new one is refused and the old one stays."""

from __future__ import annotations

import logging
import ssl
from functools import cache
from pathlib import Path

from gpufleet.errors import CannotServe

_LOG = logging.getLogger("gpufleet.proxy")
_Mark = tuple[tuple[int, int, int], ...]


@cache
def members_context() -> ssl.SSLContext:
    """For engines: chain and name are verified, by the system's authorities or those of the file SSL_CERT_FILE."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Certificate:
    """The files, and the context that all connections of the listener share.

    Every new handshake takes what the context holds then, so a renewed certificate needs no restart.
    """

    def __init__(self, certificate: str, private_key: str) -> None:
        self._certificate = certificate
        self._private_key = private_key or certificate
        self._seen = self._mark()
        self.context = self._context()

    def _context(self) -> ssl.SSLContext:
        """Raises `CannotServe`, which names the file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])  # whoever wants HTTP/2 learns here that it is not spoken
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._private_key, password=_no_password)
        except ssl.SSLError as error:
            raise _unusable(self._certificate, error.reason or str(error)) from None
        except OSError as error:
            where = self._private_key if Path(self._certificate).is_file() else self._certificate
            raise _unusable(where, error.strerror or str(error)) from None
        except ValueError as error:
            raise _unusable(self._private_key, str(error)) from None

    def look(self) -> None:
        """Called on every tick: take a new certificate when it is one."""
        mark = self._mark()
        if mark is None or mark == self._seen:
            return
        self._seen = mark
        try:
            self._context()  # a trial: the live context must not be left with half of a pair
            self._load(self.context)
        except CannotServe as error:
            _LOG.error("new certificate refused, the old one stays: %s: %s", error.where, error.summary)
        else:
            _LOG.info("new certificate in use: %s", self._certificate)

    def _mark(self) -> _Mark | None:
        """None while a file is away: it is being replaced."""
        try:
            found = [Path(path).stat() for path in (self._certificate, self._private_key)]
        except OSError:
            return None
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)


def _no_password() -> str:
    """Instead of a question on the terminal."""
    raise ValueError("the private key is encrypted; it must be readable without a password")


def _unusable(where: str, why: str) -> CannotServe:
    return CannotServe(
        f"the TLS certificate cannot be used: {why}",
        where=where,
        hints=(
            "give --certificate a PEM file with the whole chain and --private-key the key that belongs to it",
        ),
    )
