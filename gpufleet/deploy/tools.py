"""What the use cases of a pool need of the world, and what they answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpufleet.change.events import Ending, Goal
from gpufleet.change.flow import Change, take_up
from gpufleet.change.flow import Tools as ChangeTools
from gpufleet.change.model import Plan
from gpufleet.change.records import journal_file
from gpufleet.change.records.document import Resolve
from gpufleet.clock import SystemClock
from gpufleet.deploy import adapters, gate, traffic, traffic_acts
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.footing import footing, moved
from gpufleet.deploy.members import host_of
from gpufleet.deploy.staging import ask, looks, s3
from gpufleet.deploy.survey import survey
from gpufleet.engine.model import Engine
from gpufleet.engine.vllm import Vllm
from gpufleet.errors import ErrorRow, FleetError, SecretUnresolved, StalePlan
from gpufleet.hosts.model import HostFacts, Known
from gpufleet.inventory.model import Host, Inventory
from gpufleet.inventory.secrets import resolve
from gpufleet.mig import boot_unit, instances, naming, runtime_files, services
from gpufleet.names import HostName, RunId
from gpufleet.pools import record
from gpufleet.pools.mistakes import WORD
from gpufleet.pools.model import Pool
from gpufleet.pools.store import PoolStore
from gpufleet.redact import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the use cases need of the world.

    Attributes:
        change: transport, clock, state directory, observer and forks; its predicates are ours to give.
        warn: told one line about what does not stop anything.
    """

    inventory: Inventory
    change: ChangeTools
    store: PoolStore
    engine: Engine = field(default_factory=Vllm)
    warn: Callable[[str], None] = lambda _line: None

    @property
    def base(self) -> Path:
        """Where references of the inventory begin."""
        return Path(self.inventory.path).parent

    @classmethod
    def of(
        cls,
        inventory: Inventory,
        change: ChangeTools,
        warn: Callable[[str], None] = lambda _line: None,
        *,
        proxies: Sequence[str] = (),
        named: bool = False,
    ) -> Tools:
        """With our predicates and acts, and the store in the change's state directory.

        `proxies`: admin addresses of the proxies that read this machine's route table; `named`: there are no others.
        """
        store = PoolStore(change.state_dir, change.clock)
        ours = {
            **services.PREDICATES,
            **boot_unit.PREDICATES,
            **runtime_files.PREDICATES,
            **instances.PREDICATES,
            **naming.PREDICATES,
            **gate.PREDICATES,
            **adapters.PREDICATES,
            **traffic.PREDICATES,
            **looks.PREDICATES,
        }
        known = replace(
            change,
            predicates={**change.predicates, **ours},
            acts={**change.acts, **traffic_acts.acts(store, proxies, named=named)},
        )
        return cls(inventory=inventory, change=known, store=store, warn=warn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a use case did.

    Attributes:
        run: the id that `change` takes; empty when only routes were published or nothing was done.
        generation: of the route table.
        hosts: JSON rows, one a replica, one a host without a replica of its own.
        leftovers: what could not be removed after the commit.
    """

    outcome: str
    run: str = ""
    generation: int = 0
    hosts: tuple[Mapping[str, object], ...] = ()
    leftovers: tuple[ErrorRow, ...] = ()

    def fields(self) -> dict[str, object]:
        """For JSON."""
        found: dict[str, object] = {"run": self.run, "generation": self.generation, "hosts": list(self.hosts)}
        if self.leftovers:
            found["leftovers"] = [
                {"host": row.where, "message": row.message, "hint": row.hint} for row in self.leftovers
            ]
        return found


def resolved(tools: Tools, pool: Pool) -> Pool:
    """The same pool with the secrets of its environment followed.

    Raises:
        SecretUnresolved: a reference leads nowhere, or its value does not fit in one line.
    """
    base = Path(tools.inventory.path).parent
    environment: dict[str, str | Secret[str]] = {}
    for name, value in pool.engine.env.items():
        environment[name] = value
        if isinstance(value, Secret):
            found = resolve(value.reference, base)
            if "\n" in found.reveal() or "\r" in found.reveal():
                raise SecretUnresolved(f"{value.reference} has several lines, and {name} can hold one")
            if len(found.reveal().encode("utf-8", "surrogateescape")) + len(name) > WORD - 2:
                raise SecretUnresolved(f"{value.reference} is longer than {WORD // 1024} KiB")
            environment[name] = found
    return replace(pool, engine=replace(pool.engine, env=environment))


def former_hosts(
    tools: Tools, known: record.PoolRecord | None, chosen: Sequence[Host], pool: Pool | None = None
) -> tuple[Host, ...]:
    """Hosts that have replicas or members and are not chosen now; one that the inventory lost is only told."""
    items = (*known.endpoints, *known.orphans) if known is not None else ()
    names = {HostName(item.host) for item in items}
    names |= {host_of(member.replica) for member in (pool.members if pool else ()) if member.container}
    names -= {host.name for host in chosen}
    for name in sorted(names - set(tools.inventory.hosts)):
        tools.warn(
            f"{name} has replicas of this pool by its record and is no longer in the inventory: they stay"
        )
    return tuple(host for name, host in tools.inventory.hosts.items() if name in names)


def recheck(tools: Tools, plan: Plan, before: Mapping[HostName, HostFacts]) -> Callable[[], None]:
    """Look again, now that nobody else may change these hosts; `before`: the facts that the plan was made from."""

    def look_again() -> None:
        hosts = tuple(tools.inventory.hosts[name] for name in plan.hosts)
        facts = survey(tools.change.transport, hosts, clock=tools.change.clock, forks=tools.change.forks)
        if fingerprint(facts) != plan.fingerprint:
            raise StalePlan(
                "the hosts moved since the plan was made; nothing was changed",
                rows=moved(
                    {name: footing(before[name]) for name in plan.hosts},
                    {name: footing(found) for name, found in facts.items()},
                ),
                hints=("run the command again: it plans anew",),
            )

    return look_again


def warn_of_leases(tools: Tools, change: Change | None) -> None:
    """Say which hosts still think that the run is under way, and what ends that."""
    if change is None:
        return
    for host in change.unreleased:
        tools.warn(
            f"{host}: the lease could not be given back: `gpufleet change resume {change.run}` tries again"
        )


def resolver(inventory: Inventory, goal: Goal) -> Resolve:
    """Follows the references in the journal of a run that is taken up.

    An undo starts nothing, so a secret that cannot be found any more must not hold it up: it is then an empty one.
    """
    base = Path(inventory.path).parent

    def follow(reference: str) -> Secret[str]:
        try:
            if s3.REFERENCE.fullmatch(reference):
                return ask.sign_again(reference, follow, SystemClock().now())
            return resolve(reference, base)
        except SecretUnresolved:
            if goal is Goal.UNDO:
                return Secret("", reference=reference)
            raise

    return follow


def settle_old_runs(tools: Tools, facts: Mapping[HostName, HostFacts]) -> None:
    """Give back what runs of this desk that are over still hold, because a host was away when they ended.

    What this machine's journal does not know to be over is left alone: that is for `change resume` or `change undo`.
    """
    goals = {Ending.COMMITTED: Goal.RESUME, Ending.UNDONE: Goal.UNDO}
    known = {summary.run: summary for summary in journal_file.summaries(tools.change.state_dir)}
    seen = {
        run for host in facts.values() if isinstance(host.open_runs, Known) for run in host.open_runs.value
    }
    for run in sorted(seen & set(known)):
        ending = known[RunId(run)].ending
        if not ending or known[RunId(run)].busy or Ending(ending) not in goals:
            continue
        with contextlib.suppress(FleetError):  # what stays held is met again when the leases are taken
            take_up(
                RunId(run),
                tools.change,
                goals[Ending(ending)],
                resolve=resolver(tools.inventory, Goal.UNDO),
                on_commit=lambda _run, _context: None,
            )
