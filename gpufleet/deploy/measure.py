"""After a commit: one new replica of each kind of place is asked what its engine measured, and the answer is kept.

Nothing depends on it. A host that does not answer, a log that says nothing, a state directory that is full: the next
plan goes by the law instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from gpufleet.deploy.commands import Dialect, figures
from gpufleet.deploy.measurements_file import context_of, key, load, measurement, save
from gpufleet.deploy.plan import DeployPlan
from gpufleet.deploy.tools import Tools
from gpufleet.deploy.verdict import Seen
from gpufleet.engine.measured import parse
from gpufleet.engine.memory import Measured
from gpufleet.engine.vllm import devices_of
from gpufleet.errors import FleetError
from gpufleet.hosts.model import HostFacts, Known
from gpufleet.names import HostName, ReplicaId, RunId
from gpufleet.pools.model import Pool
from gpufleet.remote.result import Exit


def words_of(tools: Tools, pool: Pool) -> tuple[str, ...]:
    """Everything that the pool's engines are started with."""
    return tools.engine.container(pool, key=None, devices=devices_of(pool)).arguments


def seen(tools: Tools, pool: Pool, place: str) -> Seen | None:
    """What an earlier start of the same combination measured."""
    words = words_of(tools, pool)
    found = load(tools.change.state_dir, key(pool, words, place))
    if found is None:
        return None
    measured = Measured(
        found.weights_gib, found.activation_gib, found.non_torch_gib, found.graphs_gib, found.available_gib
    )
    return Seen(measured=measured, at=found.at, same_context=found.context == context_of(words))


def remember(tools: Tools, plan: DeployPlan, run: RunId, facts: Mapping[HostName, HostFacts]) -> None:
    """Keep what the new replicas of a committed run measured."""
    words = words_of(tools, plan.pool)
    first = {one.place: one for one in reversed(plan.memory)}
    for place, one in first.items():
        runtime = facts[one.host].runtime if one.host in facts else None
        if not isinstance(runtime, Known):
            continue
        text = _asked(tools, one.host, Dialect.of(runtime.value), run, one.replica)
        made = measurement(
            parse(text),
            plan.pool,
            words,
            at=tools.change.clock.now().isoformat(timespec="seconds"),
            run=run,
            replica=one.replica,
            place=place,
        )
        if made is not None:
            with contextlib.suppress(OSError):
                save(tools.change.state_dir, key(plan.pool, words, place), made)


def _asked(tools: Tools, host: HostName, dialect: Dialect, run: RunId, replica: ReplicaId) -> str:
    with contextlib.suppress(FleetError):
        answer = tools.change.transport.open(host).run(figures(dialect, run, replica))
        return answer.stdout if isinstance(answer, Exit) else ""
    return ""
