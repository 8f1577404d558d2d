"""What a plan means beside its replicas: the order of its steps, who is down meanwhile, and the exact commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.change.model import Irreversible, Plan, Step
from gpufleet.deploy.plan import DeployPlan
from gpufleet.deploy.replicas import New, Present
from gpufleet.names import StepId
from gpufleet.remote.command import Command


@dataclass(frozen=True, slots=True)
class Wave:
    """Steps that may run at the same time: how many of each phase."""

    phases: Mapping[str, int]
    hosts: int


def waves(plan: Plan) -> tuple[Wave, ...]:
    """The order of a plan: each step stands in the first wave in which everything it waits for is done."""
    level: dict[StepId, int] = {}
    waiting = {step.id: step for step in plan.steps}
    while waiting:
        ready = [step for step in waiting.values() if not step.after & waiting.keys()]
        if not ready:
            raise AssertionError("a plan without a circle has a step that waits for nothing")
        for step in ready:
            level[step.id] = 1 + max((level[before] for before in step.after if before in level), default=-1)
        for step in ready:
            del waiting[step.id]
    found: list[Wave] = []
    for number in range(1 + max(level.values(), default=-1)):
        steps = [step for step in plan.steps if level[step.id] == number]
        found.append(Wave(dict(Counter(step.phase for step in steps)), len({step.host for step in steps})))
    return tuple(found)


def order(plan: DeployPlan) -> tuple[str, ...]:
    """The waves in words, then what follows the commit."""
    if len(plan.waves) > 1 or any(wave.published for wave in plan.waves):
        return _order_of_strategy(plan)
    lines = [
        f"{', '.join(f'{count} {phase}' for phase, count in wave.phases.items())} on {wave.hosts} host(s)"
        for wave in waves(plan.bring_up)
    ]
    lines += ["publish the routes"] if plan.changes else []
    lines += [f"remove {len(plan.gone)} container(s) once they have nothing left to do"] if plan.gone else []
    return tuple(lines)


def _order_of_strategy(plan: DeployPlan) -> tuple[str, ...]:
    """One line a wave: who leaves the routes, who comes, who is watched."""
    lines = ["pull the image on every host"]
    for wave in plan.waves:
        words = [f"drain and stop {_names(wave.stopped)}"] if wave.stopped else []
        words.append(f"start {_names(wave.start)} and wait until each streams a token")
        if wave.published:
            words.append(
                f"send them requests instead of {_names(wave.leaving)}" if wave.leaving else "publish"
            )
        if wave.watched:
            words.append(f"watch them for {plan.pool.strategy.observe:.0f} s")
        lines.append(", ".join(words))
    lines.append("commit: publish the routes")
    lines += [f"remove {len(plan.gone)} container(s) once they have nothing left to do"] if plan.gone else []
    return tuple(lines)


def _names(replicas: Sequence[Present | New]) -> str:
    return ", ".join(one.replica for one in replicas)


def downtime(plan: DeployPlan) -> str:
    """Who is down, and from when to when."""
    stopped = [one for one in plan.gone if one.container.id in plan.stopped_first and one.up]
    serving = [one for one in (*plan.keep, *plan.gone) if one.up]
    if not stopped:
        return "none: nothing that serves is stopped before the new replicas are published"
    most = max(sum(one.up for one in wave.stopped) for wave in plan.waves)
    if most < len(stopped):
        return f"{most} of {len(serving)} replica(s) at a time, from the stop of each until its wave is published"
    if len(stopped) == len(serving):
        return f"all {len(stopped)} replica(s) are down from their stop until the new ones are ready and published"
    names = ", ".join(one.replica for one in stopped)
    return f"{len(stopped)} of {len(serving)} replica(s) ({names}) are down until the new ones are published"


def ports(plan: DeployPlan) -> dict[str, list[int]]:
    """The ports that new replicas take, by host."""
    found: dict[str, list[int]] = {}
    for one in plan.start:
        found.setdefault(one.host, []).append(one.port)
    return {host: sorted(numbers) for host, numbers in sorted(found.items())}


def images(plan: DeployPlan) -> tuple[str, ...]:
    """What is pulled, or taken from another host, as it is named to the runtime."""
    pulls = any(step.id.startswith("pull-") for step in plan.bring_up.steps)
    return (plan.runs,) if pulls else ()


@dataclass(frozen=True, slots=True)
class Script:
    """Every command of a plan as it is sent, masked, and the constant scripts that they run, each once."""

    steps: Mapping[StepId, tuple[str, ...]]
    undo: Mapping[StepId, tuple[str, ...]]
    texts: Mapping[str, str]


def script(steps: Sequence[Step]) -> Script:
    """What is sent to the hosts; `< s1` stands for the script of that name on standard input."""
    names: dict[str, str] = {}

    def told(command: Command) -> str:
        words = command.shown().rpartition(" <<< ")[0] if command.script else command.shown()
        sudo = "sudo -n " if command.become else ""
        if not command.script:
            return f"{sudo}{words}"
        name = names.setdefault(command.script.strip("\n"), f"s{len(names) + 1}")
        return f"{sudo}{words} < {name}"

    done = {step.id: tuple(map(told, step.do or (step.verify.look,))) for step in steps}
    undone = {
        step.id: () if isinstance(step.undo, Irreversible) else tuple(map(told, step.undo)) for step in steps
    }
    return Script(done, undone, {name: text for text, name in names.items()})
