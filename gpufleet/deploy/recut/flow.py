"""The use case of `mig reconfigure`: look, plan, say what becomes of every container, apply, publish, retire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpufleet.change.flow import Change, run_change
from gpufleet.change.model import Plan
from gpufleet.change.records import journal_file
from gpufleet.deploy import commit, traffic
from gpufleet.deploy.audit import Line, audited
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.recut import snapshot
from gpufleet.deploy.recut.launches import Launches
from gpufleet.deploy.recut.look import look_at
from gpufleet.deploy.recut.model import GpuLook, Recut, Revived
from gpufleet.deploy.recut.plan import Parts, steps_of
from gpufleet.deploy.recut.refusals import (
    no_layout,
    refuse_holders,
    refuse_homeless,
    refuse_odd,
    refuse_undescribed,
)
from gpufleet.deploy.recut.rows import explain
from gpufleet.deploy.recut.shares import shares
from gpufleet.deploy.recut.snapshot import revivals
from gpufleet.deploy.recut.traffic import Traffic
from gpufleet.deploy.retire import copy_routes, retire, try_again
from gpufleet.deploy.survey import preflight
from gpufleet.deploy.tools import Done, Tools, recheck, settle_old_runs, warn_of_leases
from gpufleet.errors import FactUnknown, FleetError
from gpufleet.hosts.model import Unknown
from gpufleet.inventory.model import Host
from gpufleet.mig.choose import Asked
from gpufleet.mig.commands import Target
from gpufleet.mig.gpu_steps import GpuChange
from gpufleet.mig.holders import Consent, Holders, decide
from gpufleet.mig.layout import Wanted, parse
from gpufleet.mig.outlook import outlook, touched
from gpufleet.mig.plan import NoLayout, added
from gpufleet.mig.plan import plan as make
from gpufleet.mig.runtime_files import PLACE
from gpufleet.mig.surroundings import Surroundings

OFF = "off"
"""The layout of a GPU without MIG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecutWish:
    """What somebody asks for.

    Attributes:
        layout: all slices afterwards, as written, or `off` for a GPU without MIG; `add`: slices beside those that are
            there. One of the two.
        allow_homeless: stop containers that get no other slice.
        by_memory: a slice that holds as much will do where there is none of the same profile.
        drain: seconds that members may finish what they have in flight.
        consent: what is done to holders only when asked for.
        revive: containers to be started again on slices that come back.
    """

    layout: str = ""
    add: str = ""
    allow_homeless: bool = False
    by_memory: bool = False
    drain: float = traffic.DRAIN_DEADLINE
    consent: frozenset[Consent] = field(default_factory=frozenset)
    revive: tuple[Revived, ...] = ()

    @property
    def off(self) -> bool:
        """Whether MIG is to be switched off."""
        return self.layout.strip().lower() == OFF


def prepare_recut(tools: Tools, host: Host, asked: Asked, wish: RecutWish, *, command: str) -> Recut:
    """Look at one GPU and plan; nothing is changed.

    Raises:
        UsageError, HostUnreachable, FactUnknown, Unplaceable: nothing to plan with, or no such layout.
        Refused: containers would be left without a slice, or what is there could not be put back.
        PreflightFailed: somebody who is not ours to stop holds the GPU.
    """
    look = look_at(tools, host, asked)
    return recut_of(tools, look, wanted_of(look, wish.layout, wish.add), wish, command=command)


def wanted_of(look: GpuLook, layout: str, add: str) -> tuple[Wanted, ...]:
    """Every slice that shall be there, from what somebody wrote: a whole layout, or slices more."""
    geometry = look.seen.geometry
    if layout.strip().lower() == OFF:
        return ()
    return added(look.seen.placed, geometry, parse(add, geometry)) if add else parse(layout, geometry)


def recut_of(
    tools: Tools, look: GpuLook, wanted: Sequence[Wanted], wish: RecutWish, *, command: str
) -> Recut:
    """The plan for one GPU that was looked at. Raises what `prepare_recut` raises."""
    seen, where = look.seen, f"{look.host.name}:{look.seen.gpu.index}"
    change = make(seen.geometry, seen.placed, wanted, busy=seen.busy)
    if isinstance(change, NoLayout):
        raise no_layout(change, where)
    run, ahead = journal_file.new_run_id(tools.change.clock), outlook(seen, change, off=wish.off)
    recut = Recut(
        look=look,
        run=run,
        change=change,
        ahead=ahead,
        holders=Holders(),
        moves=(),
        homeless=(),
        plan=Plan(title=f"layout of {where}", command=command, steps=()),
    )
    revived = revivals(look, change, wish.revive)
    if not (change.changes or ahead.mode_change or revived):
        return recut
    refuse_odd(seen, change, where)
    refuse_undescribed(look, change, where, off=ahead.off)
    launches = Launches(tools, {look.host.name: look.facts}, run, command)
    moves, homeless = shares(look, change, ahead, launches, run=run, by_memory=wish.by_memory)
    taken = touched(seen, change, ahead, look.containers)
    holders = decide(taken, look.holding, look.containers, wish.consent)
    refuse_holders(holders, ahead, where)
    if moves:
        preflight([look.host], {look.host.name: look.facts})
    if not wish.allow_homeless:
        refuse_homeless(homeless, where)
    recut = replace(recut, moves=moves, homeless=homeless, holders=holders, revived=revived)
    return replace(recut, plan=_plan(tools, recut, wish))


def carry_out_recut(tools: Tools, recut: Recut) -> Done:
    """Apply the plan, publish, and remove the containers that were made anew.

    Raises:
        RolledBack, RollbackIncomplete, InDoubt, LeaseHeld, StalePlan and what else `run_change` raises.
    """
    host = recut.look.host.name
    if not recut.plan.steps:
        return Done(outcome="no_change", generation=tools.store.routes().generation)
    line = Line(command=recut.plan.command, pool="", hosts=(host,), run=recut.run)
    with audited(tools, line):
        facts = {host: recut.look.facts}
        settle_old_runs(tools, facts)
        change = _applied(tools, recut)
        retired = retire(
            commit.retirees_of(recut.plan.context),
            facts,
            tools.change,
            title=f"remove what was made anew on {host}",
            again=try_again(change.run),
        )
        warn_of_leases(tools, change)
        copy_routes(tools.store, {host}, tools.change, tools.warn)
    return Done(
        outcome="committed",
        run=change.run,
        generation=tools.store.routes().generation,
        hosts=tuple(row.fields() for row in change.rows),
        leftovers=retired.leftovers,
    )


def _applied(tools: Tools, recut: Recut) -> Change:
    host = recut.look.host.name
    try:
        return run_change(
            recut.plan,
            tools.change,
            on_commit=commit.finish_commit(tools.store),
            run=recut.run,
            recheck=recheck(tools, recut.plan, {host: recut.look.facts}),
        )
    except FleetError as error:
        explain(error, recut)
        raise


def _plan(tools: Tools, recut: Recut, wish: RecutWish) -> Plan:
    """The plan of everything that was decided; `recut.plan` is the empty one."""
    look, change, host, gpu = recut.look, recut.change, recut.look.host.name, recut.look.seen.gpu
    if isinstance(look.facts.runtime, Unknown):
        raise FactUnknown(f"its container runtime is not known: {look.facts.runtime.reason}", where=host)
    dialect = Dialect.of(look.facts.runtime.value)
    cut = GpuChange(
        host=host,
        target=Target(gpu.uuid),
        change=change,
        bare=frozenset(one.placed for one in look.seen.slices if not one.cis),
        switch_on=recut.ahead.mode_change and not recut.ahead.off,
        switch_off=recut.ahead.off,
        resets=recut.ahead.needs_reset is not False,
    )
    members = Traffic(
        host=look.host,
        dialect=dialect,
        engine=tools.engine,
        pools=tools.store.routes().pools,
        gates={one.launch.pool.name: one.launch.pool.gate for one in recut.moves},
        run=recut.run,
        limit=wish.drain,
        tail=cut.tail,
    )
    parts = Parts(
        gpu=cut,
        around=Surroundings(
            host=host,
            holders=recut.holders,
            seen=look.holding,
            tail=cut.tail,
            create=PLACE if dialect.names_devices else "",
        ),
        traffic=members,
        dialect=dialect,
        moves=recut.moves,
        homeless=recut.homeless,
        revived=recut.revived,
        boot=look.boot,
    )
    wanted = ", ".join(str(one) for one in sorted((*change.keep, *change.create))) or "no slices"
    wanted = "no MIG" if recut.ahead.off else wanted
    return replace(
        recut.plan,
        title=f"recut {host}:{gpu.index} to {wanted}",
        steps=steps_of(parts),
        fingerprint=fingerprint({host: look.facts}),
        context=_context(tools, recut, members),
    )


def _context(tools: Tools, recut: Recut, members: Traffic) -> dict[str, str]:
    """What makes the change known once every step is done."""
    uuid, moved = recut.look.seen.gpu.uuid, recut.moves
    return commit.recut_context(
        moved=[
            commit.Moved(
                pool=one.launch.pool.name,
                url=members.to_be(one.new),
                gpu=uuid,
                slice=f"{uuid} {one.home.profile} {one.home.start}",
            )
            for one in moved
        ],
        lost=sorted(members.addresses([one.present for one in recut.homeless])),
        before=snapshot.encode(snapshot.of(recut.look)),
        retire=commit.retirees(
            [one.present for one in moved], {recut.look.host.name: recut.look.host}, tools.engine
        ),
    )
