"""The steps of a deploy, each with its undo beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.change.model import Check, Irreversible, Step
from gpufleet.deploy import commands, gate
from gpufleet.deploy.commands import Dialect, Drain
from gpufleet.deploy.placement.api import WHOLE
from gpufleet.deploy.placement.shares import SHARE_LABEL
from gpufleet.deploy.pull import PULL_STALL, pull
from gpufleet.deploy.replicas import (
    LABEL,
    New,
    Present,
    bind_address,
    slice_label,
    slot_name,
    url_of,
)
from gpufleet.deploy.spec import adapters_label
from gpufleet.deploy.staging.images import is_id
from gpufleet.engine.model import EngineContainer
from gpufleet.hosts.probes.container import DEVICES_LABEL
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, RunId, StepId
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all replicas that are started together have in common."""

    pool: Pool
    run: RunId
    revision: int
    spec: str
    container: EngineContainer
    health: str
    key: Secret[str] | None
    image_label: str = ""


def pull_step(host: HostName, dialect: Dialect, image: str, stall: float = PULL_STALL) -> Step:
    """Bring the image to one host; one that is named by its id is there, and no registry knows it by that."""
    there = is_id(image)
    return Step(
        id=StepId(f"pull-{host}"),
        host=host,
        title=f"use {image}, which is there" if there else f"pull {image}",
        do=() if there else (pull(dialect, image, stall),),
        undo=Irreversible("an image more on the host's disk is harmless"),
        verify=Check(look=commands.image(dialect, image), expect="image-present", data=(image,)),
        phase="pull",
    )


def stop_step(present: Present, dialect: Dialect, grace: int, after: frozenset[StepId]) -> Step:
    """Stop a replica and keep its container, so that the undo starts it again with the restart policy it had."""
    container = present.container
    policy = container.restart_policy or "no"
    return Step(
        id=StepId(f"stop-{present.host}-{container.id[:12]}"),
        host=present.host,
        title=f"stop {present.replica} ({container.name}), kept until the commit",
        do=(commands.stop(dialect, container.id, grace),),
        undo=(commands.restore(dialect, container.id, policy),),
        verify=Check(
            look=commands.inspect(dialect, container.id),
            expect="container-in-state",
            data=("exited,dead", "no" if dialect.updates else ""),
            within=10.0,
            every=1.0,
        ),
        absent=Check(
            look=commands.inspect(dialect, container.id),
            expect="container-in-state",
            data=("running,restarting", policy if dialect.updates else ""),
            within=10.0,
            every=1.0,
        ),
        after=after,
        phase="stop",
    )


def start_id(new: New) -> StepId:
    return StepId(f"start-{new.host}-{new.number}{new.tail}")


def start_step(launch: Launch, new: New, host: Host, dialect: Dialect, after: frozenset[StepId]) -> Step:
    """Start one replica; undoing it removes the container, whatever became of it."""
    pool, step = launch.pool, start_id(new)
    bind = bind_address(host)
    address = "" if bind is None else f"[{bind}]:" if ":" in bind else f"{bind}:"
    words = commands.run_words(
        dialect,
        launch.container,
        name=f"gpufleet-{pool.name}-{new.number}-{launch.run[-6:]}",
        labels={
            f"{LABEL}.pool": pool.name,
            f"{LABEL}.replica": new.replica,
            f"{LABEL}.run": launch.run,
            f"{LABEL}.step": step,
            f"{LABEL}.revision": str(launch.revision),
            f"{LABEL}.spec": launch.spec,
            f"{LABEL}.slice": slice_label(new.placed),
            DEVICES_LABEL: ",".join(slot.device for slot in new.placed.slots),
            **adapters_label(pool, launch.container),
            **({f"{LABEL}.image": launch.image_label} if launch.image_label else {}),
            **({SHARE_LABEL: str(new.placed.share)} if new.placed.share < WHOLE else {}),
        },
        devices=tuple(slot.device for slot in new.placed.slots),
        publish=f"{address}{new.port}",
        limits=pool.limits,
    )
    state = commands.state(dialect, launch.run, step)
    return Step(
        id=step,
        host=new.host,
        title=f"start {new.replica} on {slot_name(new.placed)}, port {new.port}",
        do=(commands.start(dialect, launch.run, step, launch.container.environment, words),),
        undo=(commands.unstart(dialect, launch.run, step),),
        verify=Check(look=state, expect="container-started", within=10.0, every=1.0),
        absent=Check(look=state, expect="nothing-left"),
        after=after,
        phase="start",
    )


def gate_step(launch: Launch, new: New, host: Host, dialect: Dialect) -> Step:
    """Ask one replica until it is ready; changes nothing, so there is nothing to undo."""
    return Step(
        id=StepId(f"gate-{new.host}-{new.number}{new.tail}"),
        host=new.host,
        title=f"wait until {new.replica} streams a token",
        do=(),
        undo=(),
        verify=gate.check(
            dialect,
            launch.pool,
            run=launch.run,
            step=start_id(new),
            base=url_of(bind_address(host) or "127.0.0.1", new.port),
            inner=url_of("127.0.0.1", launch.container.port),
            health=launch.health,
            key=launch.key,
        ),
        after=frozenset({start_id(new)}),
        phase="gate",
    )


def settle_step(
    run: RunId, dialect: Dialect, starts: Sequence[Step], after: frozenset[StepId], *, tail: str = ""
) -> Step:
    """From now on the runtime brings the replicas back by itself, whatever ended them."""
    steps, host = tuple(step.id for step in starts), starts[0].host
    return Step(
        id=StepId(f"settle-{host}{tail}"),
        host=host,
        title=f"restart policy {commands.WHEN_READY} for {len(steps)} replica(s)",
        do=(commands.policy(dialect, run, steps, commands.WHEN_READY),),
        undo=(commands.policy(dialect, run, steps, commands.UNTIL_READY),),
        verify=Check(
            look=commands.policies(dialect, run, steps),
            expect="container-in-state",
            data=("running,restarting", commands.WHEN_READY),
        ),
        after=after,
        phase="settle",
    )


def remove_step(
    host: HostName, container: str, *, replica: str, dialect: Dialect, drain: Drain, grace: int
) -> Step:
    """Let a replica that nobody is sent to any more finish, and remove it; `container` is a full id."""
    return Step(
        id=StepId(f"remove-{host}-{container[:12]}"),
        host=host,
        title=f"remove {replica} (container {container[:12]})",
        do=(commands.remove(dialect, container, grace, drain),),
        undo=Irreversible("what replaced it serves already"),
        verify=Check(look=commands.by_id(dialect, container), expect="nothing-left"),
        phase="remove",
    )
