"""How a replica that runs is made anew: from the record of its pool, and only when that is what it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpufleet.deploy.catalogue import filled
from gpufleet.deploy.plan import Wish, launch_of, spec_of
from gpufleet.deploy.replicas import LABEL, Present
from gpufleet.deploy.steps import Launch
from gpufleet.deploy.tools import Tools, resolved
from gpufleet.deploy.weights import staging_of
from gpufleet.errors import FleetError
from gpufleet.hosts.model import HostFacts
from gpufleet.models.load import catalogue
from gpufleet.names import HostName, PoolName, RunId
from gpufleet.pools import record


class Launches:
    """Launches of the pools of one host, each pool looked up once."""

    def __init__(self, tools: Tools, facts: Mapping[HostName, HostFacts], run: RunId, command: str) -> None:
        self._tools = tools
        self._facts = facts
        self._run = run
        self._command = command
        self._wishes: dict[PoolName, Wish | str] = {}

    def of(self, present: Present) -> Launch | str:
        """What starts this replica again, or why nothing does."""
        labels = present.container.labels
        name = labels.get(f"{LABEL}.pool", "")
        if not name:
            return "gpufleet did not start it, and cannot make it anew"
        if len(present.container.devices) != 1 or len(present.container.ports) != 1:
            return "it has more than one device or port"
        wish = self._wish(PoolName(name))
        if isinstance(wish, str):
            return wish
        if spec_of(wish) != labels.get(f"{LABEL}.spec"):
            return f"it is not what pool {name} is now: deploy the pool first"
        launch = launch_of(wish)
        return replace(
            launch,
            revision=_number(labels.get(f"{LABEL}.revision", "")),
            container=replace(launch.container, image=present.container.image),
            image_label=labels.get(f"{LABEL}.image", ""),
        )

    def _wish(self, name: PoolName) -> Wish | str:
        if name not in self._wishes:
            try:
                self._wishes[name] = self._made(name)
            except FleetError as error:
                self._wishes[name] = f"pool {name}: {error.summary}"
        return self._wishes[name]

    def _made(self, name: PoolName) -> Wish | str:
        tools = self._tools
        known, key = tools.store.record(name), tools.store.key(name)
        if known is None:
            return f"there is no record of pool {name} on this machine"
        pool = resolved(tools, filled(record.pool_of(known), catalogue(tools.inventory)))
        hosts = tuple(tools.inventory.hosts[host] for host in self._facts)
        return Wish(
            pool=pool,
            run=self._run,
            revision=known.revision,
            engine=tools.engine,
            key=key,
            command=self._command,
            staging=staging_of(tools, pool, hosts, self._facts, self._run),
        )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
