"""Routes for a proxy that stands elsewhere: fetched from a host, and led through SSH where members are not reached directly.

The data plane knows nothing of this. It reads a route table as ever; here that table is written for it, again and
again, with the address of a local tunnel in place of each member's own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.console import warn
from gpufleet.errors import CannotServe, FleetError

if TYPE_CHECKING:
    from gpufleet.cli.settings import Settings
    from gpufleet.pools.routes import EndpointRoute, RouteTable
    from gpufleet.remote.transport import Session, Transport
    from gpufleet.remote.tunnel import Stream, Tunnel

_PERIOD = 2.0
_READ = 'cat "$HOME/.gpufleet/routes.json"'


@contextmanager
def reached_routes(
    settings: Settings, routes: Path, *, routes_from: str, tunnel: bool, target: Path
) -> Iterator[Path]:
    """The path of the table to serve: `routes` itself, or `target`, which is kept fresh until the block ends.

    Raises `CannotServe` when the first table is not got.
    """
    if not routes_from and not tunnel:
        yield routes
        return
    from gpufleet.cli.wiring import load_inventory, transport

    with contextlib.closing(transport(load_inventory(settings), settings)) as hosts:
        reach = Reach(hosts, routes, routes_from=routes_from, tunnel=tunnel, target=target)
        with contextlib.closing(reach):
            reach.start()
            yield target


class Reach:
    """Keeps `target` as `routes` (or the copy on the host `routes_from`) says, with tunnels where they are wanted."""

    def __init__(
        self, hosts: Transport, routes: Path, *, routes_from: str, tunnel: bool, target: Path
    ) -> None:
        self._hosts = hosts
        self._routes = routes
        self._from = routes_from
        self._tunnel = tunnel
        self._target = target
        self._sessions: dict[str, Session] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._tunnels: dict[tuple[str, str], Tunnel] = {}
        self._content = b""
        self._trouble = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="routes", daemon=True)

    def start(self) -> None:
        """Raises `CannotServe`."""
        try:
            self._refresh()
        except (FleetError, OSError, ValueError) as error:
            raise CannotServe(
                f"there is nothing to serve: {error}",
                where=self._from or str(self._routes),
                hints=(
                    "deploy a pool first (`gpufleet pool deploy`); each deploy leaves a copy on its hosts",
                ),
            ) from None
        self._thread.start()

    def close(self) -> None:
        """End every tunnel."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for tunnel in self._tunnels.values():
            tunnel.close()
        for session in self._sessions.values():
            session.close()

    def _keep(self) -> None:
        """A source that cannot be read is said once; the table in use stays."""
        while not self._ended.wait(_PERIOD):
            trouble = ""
            try:
                self._refresh()
            except (FleetError, OSError, ValueError) as error:
                trouble = str(error)
                if trouble != self._trouble:
                    warn(f"the routes are not read anew: {trouble}")
            self._trouble = trouble

    def _refresh(self) -> None:
        from gpufleet.pools.routes import decode, encode
        from gpufleet.whole_file import write

        content = self._read()
        if content == self._content:
            return
        table = decode(content)
        write(self._target, encode(self._through(table)) if self._tunnel else content)
        self._content = content

    def _read(self) -> bytes:
        from gpufleet.remote.command import Command
        from gpufleet.remote.result import Exit

        if not self._from:
            return self._routes.read_bytes()
        answer = self._session(self._from).run(Command(script=_READ, mutates=False))
        if not isinstance(answer, Exit):
            raise CannotServe(answer.reason, where=self._from)
        if not answer.ok:
            raise CannotServe("there is no route table on this host", where=self._from)
        return answer.stdout.encode()

    def _session(self, host: str) -> Session:
        from gpufleet.names import HostName

        with self._locks.setdefault(host, threading.Lock()):
            session = self._sessions.get(host)
            if session is None:
                session = self._sessions[host] = self._hosts.open(HostName(host))
            return session

    def _through(self, table: RouteTable) -> RouteTable:
        """The same table by way of tunnels; those that nothing needs any more are closed."""
        import msgspec

        needed: set[tuple[str, str]] = set()

        def led(endpoint: EndpointRoute) -> EndpointRoute:
            identity = (endpoint.id, endpoint.url)
            needed.add(identity)
            if identity not in self._tunnels:
                self._tunnels[identity] = self._dug(endpoint)
            return msgspec.structs.replace(endpoint, url=f"http://127.0.0.1:{self._tunnels[identity].port}")

        pools = tuple(
            msgspec.structs.replace(pool, endpoints=tuple(led(endpoint) for endpoint in pool.endpoints))
            for pool in table.pools
        )
        for identity in set(self._tunnels) - needed:
            self._tunnels.pop(identity).close()
        return msgspec.structs.replace(table, pools=pools)

    def _dug(self, endpoint: EndpointRoute) -> Tunnel:
        from gpufleet.remote.tunnel import Tunnel

        return Tunnel(self._way(endpoint), warn)

    def _way(self, endpoint: EndpointRoute) -> Callable[[], Stream]:
        """How one connection to this member is opened; nothing is opened before it is needed."""
        import socket

        from gpufleet.proxy.run.member import split_url
        from gpufleet.remote.tunnel import Forwarding

        if endpoint.url.startswith("https:"):
            raise CannotServe(
                "a member behind TLS cannot be led through a tunnel: its certificate has another name there",
                where=f"{endpoint.id} at {endpoint.url}",
                hints=("leave out --tunnel, and it is asked directly",),
            )
        host = endpoint.id.partition("/")[0]
        address = split_url(endpoint.url)

        def reach() -> Stream:
            session = self._session(host)
            if isinstance(session, Forwarding):
                return session.forward(*address)
            return socket.create_connection(address)  # a member on this machine

        return reach
