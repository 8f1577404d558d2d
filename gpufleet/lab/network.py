"""What simulated hosts reach by HTTP beside themselves: each other, and sites outside the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpufleet.lab.containers.file_server import serve_file, serves_files
from gpufleet.lab.simhost import Answer, EngineHost, SimHost

if TYPE_CHECKING:
    from gpufleet.lab.containers.simcontainer import ContainerEngine

Site: TypeAlias = Callable[[str, str, Mapping[str, str], bytes], Answer]
"""Method, path with query, headers and body to an answer; raises `ConnectionResetError` in the middle of a body."""


class NoRoute(Exception):
    """Nothing is reached at this address; `code` is curl's exit status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One host of the network and what runs in its containers."""

    host: SimHost
    containers: ContainerEngine
    engines: EngineHost


@dataclass(slots=True)
class Network:
    """Addresses and who answers there.

    Attributes:
        hosts: by address.
        sites: by `host:port`, as it stands in an address.
        walls: pairs of addresses between which nothing passes.
    """

    hosts: dict[str, Neighbour] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)
    walls: set[tuple[str, str]] = field(default_factory=set)

    def join(self, host: SimHost, containers: ContainerEngine, engines: EngineHost) -> None:
        """A host is plugged in."""
        self.hosts[host.address] = Neighbour(host, containers, engines)

    def reach(self, origin: SimHost, name: str, port: int) -> Reached:
        """Who answers a host at an address.

        Raises:
            NoRoute: nobody.
        """
        own = name in {"127.0.0.1", "localhost", "::1", origin.address}
        here = self.hosts.get(origin.address if own else name)
        if here is not None and own:
            here = next((one for one in self.hosts.values() if one.host is origin), here)
        if here is not None and (origin.address, here.host.address) in self.walls:
            raise NoRoute(28, f"Failed to connect to {name} port {port}: Connection timed out")
        listener = here.host.listener(port, name) if here is not None else None
        if here is not None and listener is not None:
            if not listener.container:
                raise NoRoute(52, "Empty reply from server")
            return Reached(neighbour=here, container=listener.container)
        site = self.sites.get(f"{name}:{port}") or self.sites.get(name)
        if site is not None:
            return Reached(site=site)
        if here is None and not name.replace(".", "").isdigit():
            raise NoRoute(6, f"Could not resolve host: {name}")
        raise NoRoute(7, f"Failed to connect to {name} port {port}: Connection refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Who answers: a site, or a container of a host."""

    site: Site | None = None
    neighbour: Neighbour | None = None
    container: str = ""

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        sleep: Callable[[float], None],
    ) -> Answer:
        """One request."""
        if self.site is not None:
            return self.site(method, path, headers, body)
        if self.neighbour is None:
            raise ConnectionRefusedError("nobody answers")
        running = self.neighbour.containers.containers.get(self.container)
        if running is not None and serves_files(running):
            return serve_file(self.neighbour.host, running, method, path, headers)
        return self.neighbour.engines.http(self.container, method, path, headers, body, sleep=sleep)
