"""Which adapters the members of a pool have: every engine asked, on its host, by its own key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.change.reach import Reach
from gpufleet.deploy.adapters import Member, listed
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.replicas import Present, replicas_of
from gpufleet.deploy.tools import Tools
from gpufleet.engine.adapters import Loaded
from gpufleet.errors import ErrorRow, FleetError
from gpufleet.hosts.model import ContainerFact, HostFacts, Known
from gpufleet.inventory.secrets import resolve
from gpufleet.names import HostName, PoolName, ReplicaId
from gpufleet.pools.model import Endpoint
from gpufleet.redact import Secret
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Lost


def members_of(
    tools: Tools, name: PoolName, endpoints: Sequence[Endpoint], facts: Mapping[HostName, HostFacts]
) -> tuple[list[Member], list[ErrorRow]]:
    """The members whose containers run, and a row for each that does not; `facts`: of all their hosts."""
    own = {
        one.replica: one.container
        for one in replicas_of(name, facts.values())
        if one.container.state == "running" and one.container.ports
    }
    found: list[Member] = []
    rows: list[ErrorRow] = []
    for item in endpoints:
        container = _added(item, facts) if item.container else own.get(item.replica)
        runtime = facts[item.host].runtime
        if container is None or not isinstance(runtime, Known):
            rows.append(ErrorRow(item.host, f"{item.replica} does not run", _start_again(name, item)))
            continue
        found.append(
            Member.of(
                Present(replica=item.replica, host=item.host, container=container),
                tools.inventory.hosts[item.host],
                Dialect.of(runtime.value),
                _key(tools, name, item),
                port=int(item.url.rpartition(":")[2]) if item.container else container.ports[0],
            )
        )
    return found, rows


def _added(item: Endpoint, facts: Mapping[HostName, HostFacts]) -> ContainerFact | None:
    containers = facts[item.host].containers
    known = containers.value if isinstance(containers, Known) else ()
    return next((one for one in known if one.id == item.container and one.state == "running"), None)


def _start_again(name: PoolName, item: Endpoint) -> str:
    """What to do about a member that does not run; no deploy starts one that was added."""
    if not item.container:
        return f"gpufleet pool deploy {name}"
    return f"it was added to the pool: start its container yourself, or `gpufleet pool remove {name} {item.replica}`"


def _key(tools: Tools, name: PoolName, item: Endpoint) -> Secret[str] | None:
    if item.key is None:
        return tools.store.key(name)
    return resolve(item.key, tools.base) if item.key else None


def asked(tools: Tools, members: Sequence[Member]) -> dict[ReplicaId, tuple[Loaded, ...] | str]:
    """What every engine has now, or why that is not known."""
    reach = Reach(tools.change.transport, tools.change.clock)

    def ask(host: HostName) -> dict[ReplicaId, tuple[Loaded, ...] | str]:
        answers: dict[ReplicaId, tuple[Loaded, ...] | str] = {}
        for member in members:
            if member.present.host == host:
                outcome = reach.insist(host, member.look())
                told = outcome.reason if isinstance(outcome, Lost) else listed(outcome)
                answers[member.present.replica] = told
        return answers

    try:
        told = fanout((member.present.host for member in members), ask, forks=tools.change.forks)
    finally:
        reach.close()
    found: dict[ReplicaId, tuple[Loaded, ...] | str] = {}
    for host, answer in told.items():
        if isinstance(answer, FleetError):
            ours = (member.present.replica for member in members if member.present.host == host)
            found |= dict.fromkeys(ours, answer.summary)
        else:
            found |= answer
    return found
