"""The sockets that one proxy listens on: where they come from, and to whom they go.

They come from systemd, from the proxy that is taken over, or are bound; they go to whoever takes over from this one.
With several workers each has a socket of its own (SO_REUSEPORT), so that the kernel shares clients out evenly; the
supervisor holds all of them, so a worker that dies loses nobody who waits in its queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.run.handover import Count, Handover, Offer, Taken, take
from gpufleet.proxy.run.sockets import Sockets, bind, fits, inherited, notify

_LOG = logging.getLogger("gpufleet.proxy")
PURPOSES = ("listen", "admin")


class Port:
    """See the module. `drained` and `counts` are asked when somebody takes over."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        drained: Callable[[], list[tuple[str, str]]],
        counts: Callable[[], list[Count]],
    ) -> None:
        self._config = config
        self._drained = drained
        self._counts = counts
        self._handover: Handover | None = None
        self.sockets: Sockets = {}
        self.taken: Taken | None = None
        self.activated = False
        """systemd holds the sockets: somebody will serve new clients when this process ends."""

    def open(self, copies: int = 1) -> None:
        """Get the sockets; `copies` of that for clients when they are bound here. Raises `CannotServe`."""
        config = self._config
        given = inherited(os.environ)
        self.activated = bool(given)
        if config.take_over and config.handover:
            self.taken = take(Path(config.handover))
            if self.taken is not None:
                given = self.taken.sockets
        for purpose, address, number in (("listen", config.listen, copies), ("admin", config.admin, 1)):
            found = given.get(purpose, [])
            if found and (self.activated or all(fits(sock, address) for sock in found)):
                self.sockets[purpose] = found
                continue
            for sock in found:
                sock.close()
            self.sockets[purpose] = bind(address, copies=number)

    def offer(
        self, loop: asyncio.AbstractEventLoop, on_taken: Callable[[], None]
    ) -> list[asyncio.Task[None]]:
        """We serve: say so to systemd and to the proxy before us, and let another take over from now on."""
        notify(os.environ, f"READY=1\nMAINPID={os.getpid()}")
        path = self._config.handover
        if not path:
            return []
        self._handover = Handover(
            Path(path), describe=self._described, on_taken=on_taken, counts=self._counts
        )
        try:
            self._handover.open()
        except OSError as error:
            _LOG.warning("no other proxy can take over from this one: %s: %s", path, error)
            return []
        return [loop.create_task(self._handover.serve(loop))]

    def follow(
        self, loop: asyncio.AbstractEventLoop, on_counts: Callable[[list[Count]], None]
    ) -> list[asyncio.Task[None]]:
        """Pass on what the proxy before us still has in flight."""
        return [] if self.taken is None else [loop.create_task(self.taken.follow(loop, on_counts))]

    def _described(self) -> tuple[Offer, list[socket.socket]]:
        given = [(purpose, sock) for purpose, found in self.sockets.items() for sock in found]
        offer = Offer(
            purposes=[purpose for purpose, _ in given], drained=self._drained(), counts=self._counts()
        )
        return offer, [sock for _, sock in given]

    def address(self, purpose: str) -> Address:
        """Where it listens, the port filled in."""
        asked = self._config.listen if purpose == "listen" else self._config.admin
        sockets = self.sockets.get(purpose)
        if not sockets or sockets[0].family not in {socket.AF_INET, socket.AF_INET6}:
            return asked
        host, port = sockets[0].getsockname()[:2]
        return Address(host=host, port=port)

    def close(self, purpose: str) -> None:
        """Listen no more; a queue that nobody else holds is gone."""
        for sock in self.sockets.pop(purpose, []):
            sock.close()

    def withdraw(self) -> None:
        """Nobody takes over from a proxy that ends."""
        if self._handover is not None:
            self._handover.close()

    def end(self) -> None:
        """Close everything; the proxy that was asked and never told that we serve goes on."""
        for purpose in PURPOSES:
            self.close(purpose)
        self.withdraw()
        if self.taken is not None:
            self.taken.close()
