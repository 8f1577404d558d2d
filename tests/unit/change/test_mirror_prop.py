"""Merged copies claim less than happened, never more."""

from __future__ import annotations

import random
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.change.events import Ended, Goal, Intended, Observed, Reopened
from gpufleet.change.machine import evolve, opened
from gpufleet.change.model import HERE, Irreversible
from gpufleet.change.records import journal, mirror
from gpufleet.change.records.document import plan_record
from gpufleet.change.records.journal import SCHEMA, Opened, Record, body_of
from gpufleet.change.table import RunPhase
from gpufleet.names import HostName
from tests.unit.change.test_machine_prop import Crash, Process, World, check_ending, plans


def copies_of(process: Process, plan, dice: random.Random) -> dict[HostName, list[Record]]:
    """What each host has: its own steps and the whole run, as a prefix that holds at least every intent."""
    first = Record(SCHEMA, 1, "t", Opened("r", "ann", "seat", plan.hosts, plan_record(plan)))
    copies = {host: [first] for host in plan.hosts}
    steps = {step.id: step for step in plan.steps}
    for number, event in enumerate(process.journal, start=2):
        record = Record(SCHEMA, number, "t", body_of(event))
        own = steps[event.step].host if isinstance(event, Intended | Ended | Observed) else HERE
        hosts = plan.hosts if own == HERE else (own,)
        for host in hosts:
            copies[host].append(record)
    for host, copy in copies.items():
        intents = [place for place, record in enumerate(copy) if isinstance(record.body, journal.Intent)]
        shortest = intents[-1] + 1 if intents else 1
        copies[host] = copy[: dice.randint(shortest, len(copy))]
    return copies


@given(plans(), st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.3]), st.integers(0, 60))
def test_a_run_is_finished_from_the_copies(plan, seed, trouble, records):
    dice = random.Random(seed)
    world = World(plan, dice, trouble, revival=0.2)
    process = Process(world, opened(plan), [], crash_at=records)
    with suppress(Crash):
        process.run(3)
    copies = copies_of(process, plan, dice)
    unseen = frozenset(host for host in plan.hosts if dice.random() < 0.2)
    if unseen == frozenset(plan.hosts):
        return
    seen = [tuple(copy) for host, copy in copies.items() if host not in unseen]
    history = mirror.merged(seen, unseen, plan)
    state = journal.replay(history, plan)
    taken_up = Process(world, state, [], crash_at=-1)
    taken_up.agrees_with_the_world()
    world.trouble = 0.0
    world.dead.clear()
    if state.phase is RunPhase.PUBLISHING:
        return
    again = evolve(state, Reopened(goal=Goal.UNDO))
    taken_up.state = again
    world.published = False
    if process.state.phase in {RunPhase.PUBLISHING, RunPhase.COMMITTED}:
        return
    ending = taken_up.run(3)
    check_ending(world, taken_up.state, ending)
    lasting = {step.id for step in plan.steps if isinstance(step.undo, Irreversible)}
    assert world.there <= lasting
