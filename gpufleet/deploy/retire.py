"""After the commit: remove what nobody is sent to any more, and leave a copy of the routes on the touched hosts.

Nothing here is rolled back. What could not be done is a leftover: it is named, with the reason, and the next deploy
of the pool tries again, because it finds the containers by their labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.change.flow import Tools, run_change
from gpufleet.change.model import Plan, Step
from gpufleet.deploy.commands import Dialect, Drain
from gpufleet.deploy.commit import Retiree
from gpufleet.deploy.steps import remove_step
from gpufleet.engine.vllm import STOP_TIMEOUT
from gpufleet.errors import ErrorRow, FleetError
from gpufleet.hosts.model import HostFacts, Known
from gpufleet.names import HostName, RunId
from gpufleet.pools import routes
from gpufleet.pools.store import PoolStore
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit

ROUTES_COPY = "~/.gpufleet/routes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """What became of it: the runs that removed, and what is left."""

    runs: tuple[RunId, ...] = ()
    leftovers: tuple[ErrorRow, ...] = ()


def retire(
    retirees: Sequence[Retiree], facts: Mapping[HostName, HostFacts], tools: Tools, *, title: str, again: str
) -> Retired:
    """Remove these containers; a host that fails does not hold up the others. `again`: what a person may do then."""
    steps: list[Step] = []
    leftovers: list[ErrorRow] = []
    for one in retirees:
        host = facts.get(HostName(one.host))
        if host is None or not isinstance(host.runtime, Known):
            leftovers.append(_left(one, "the host was not looked at", again))
            continue
        steps.append(
            remove_step(
                HostName(one.host),
                one.container,
                replica=one.replica,
                dialect=Dialect.of(host.runtime.value),
                drain=Drain(metrics=one.metrics, busy=one.busy),
                grace=STOP_TIMEOUT,
            )
        )
    runs: list[RunId] = []
    while steps:
        plan = Plan(title=title, command="retire", steps=tuple(steps), context={"use": "retire"})
        try:
            runs.append(run_change(plan, tools, on_commit=_nothing_to_publish).run)
            break
        except FleetError as error:
            bad = _failed_hosts(error, plan)
            leftovers += [_left(one, bad[HostName(one.host)], again) for one in retirees if one.host in bad]
            steps = [step for step in steps if step.host not in bad]
    return Retired(runs=tuple(runs), leftovers=tuple(leftovers))


def try_again(run: str) -> str:
    """The hint of a leftover."""
    return f"gpufleet change resume {run}" if run else "the next deploy of the pool removes it"


def _nothing_to_publish(run: RunId, context: Mapping[str, str]) -> None:
    del run, context


def _failed_hosts(error: FleetError, plan: Plan) -> dict[HostName, str]:
    """Which hosts stood in the way; all of them when the error does not say."""
    fields = getattr(error, "fields", None)
    rows = fields.get("hosts", []) if isinstance(fields, Mapping) else []
    found = {HostName(str(row["host"])): str(row["reason"]) for row in rows if row.get("reason")}
    if not found:
        found = {HostName(row.where): row.message for row in error.rows if row.where in plan.hosts}
    if not found and error.where in plan.hosts:
        found = {HostName(error.where): error.summary}
    return found or dict.fromkeys(plan.hosts, str(error))


def _left(one: Retiree, reason: str, again: str) -> ErrorRow:
    return ErrorRow(
        one.host,
        f"container {one.name} of {one.replica} may be left: {reason}",
        again,
        "leftover",
    )


def copy_routes(
    store: PoolStore, hosts: Iterable[HostName], tools: Tools, warn: Callable[[str], None]
) -> None:
    """Put the route table on the hosts, so that another machine finds it there; a failure is only told."""
    content = routes.encode(store.routes())

    def put(host: HostName) -> str:
        answer = tools.transport.open(host).put(content, ROUTES_COPY, 0o600)
        if isinstance(answer, Exit):
            return "" if answer.ok else answer.stderr.strip() or f"exit status {answer.code}"
        return answer.reason

    for host, outcome in fanout(sorted(set(hosts)), put, forks=tools.forks).items():
        reason = str(outcome)
        if reason:
            warn(f"{host}: the copy of the route table was not written: {reason}")
