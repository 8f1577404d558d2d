"""Members of a pool taken out of the route table and put in, and waited for: steps on this machine, as values.

A shift says which members it finds and which it leaves, whole, so that the exchange of the two undoes it, and so that
members it does not name, other pools, and what an operator sets meanwhile are left alone. Every proxy reads the table
by itself; a shift is done when the time in which it does has passed. `traffic_acts` carries all of this out.

A member is drained when nobody counts a request of it in flight: neither a proxy of this machine, nor the engine's own
metrics page, asked on its host. One of the two is enough to know; when neither answers nothing is known, and unknown
is waited for to the deadline as if it were busy. A member whose container is down has nothing in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gpufleet.change.model import HERE, CannotTell, Check, Fails, Holds, Predicate, Step, Verdict, Waits
from gpufleet.names import StepId
from gpufleet.pools.routes import EndpointRoute, PoolRoute
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

DRAIN_DEADLINE = 600.0

DOWN = frozenset({"gone", "created", "exited", "dead"})
"""States of a container in which nothing can be in flight."""


class Shift(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members of one pool as they are found and as they are left. `algorithm`: the pool's while this holds."""

    pool: str
    models: tuple[str, ...]
    algorithm: str
    before: tuple[EndpointRoute, ...]
    after: tuple[EndpointRoute, ...]


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member and how it is asked.

    Attributes:
        runtime, root: the runtime's program on the host, and whether it is reached through sudo.
        filters: two filters of the runtime that find its container: by id, or by the labels of its run and step.
        base, inner: where the host, and where the container itself, reaches the engine.
        busy: regular expression of the metrics whose value is 0 when it has nothing to do.
        url: how proxies know it.
    """

    pool: str
    replica: str
    host: str
    runtime: str
    root: bool
    filters: tuple[str, str]
    base: str
    inner: str
    health: str
    metrics: str
    busy: str
    url: str


def shift_step(
    step: str,
    title: str,
    shift: Shift,
    *,
    undone: str | None = None,
    named: tuple[str, ...] | None = None,
    after: frozenset[StepId],
) -> Step:
    """Publish members in another state; the undo publishes them as they were.

    `undone` and `named`: the algorithm and the model names before, where the shift changes them.
    """
    back = msgspec.structs.replace(
        shift,
        before=shift.after,
        after=shift.before,
        algorithm=undone or shift.algorithm,
        models=shift.models if named is None else named,
    )
    return Step(
        id=StepId(step),
        host=HERE,
        title=title,
        do=(_named("shift-routes", shift, mutates=True),),
        undo=(_named("shift-routes", back, mutates=True),),
        verify=Check(look=_named("see-routes", shift), expect="said-so"),
        absent=Check(look=_named("see-routes", back), expect="said-so"),
        after=after,
        phase="route",
    )


def cordons_elsewhere(
    pools: Sequence[PoolRoute], urls: Collection[str], *, tail: str = "", after: frozenset[StepId]
) -> list[Step]:
    """Send nothing new to these addresses in other pools that have them as members; the undo puts them back there."""
    made: list[Step] = []
    for pool in pools:
        found = tuple(one for one in pool.endpoints if one.url in urls)
        if not found:
            continue
        shift = Shift(
            pool=pool.name,
            models=pool.models,
            algorithm=pool.algorithm,
            before=found,
            after=tuple(msgspec.structs.replace(one, state="draining") for one in found),
        )
        names = ", ".join(one.id for one in found)
        title = f"send nothing new to {names} in pool {pool.name}"
        made.append(shift_step(f"cordon{tail}-in-{pool.name}", title, shift, after=after))
    return made


def withdraw_step(served: PoolRoute, names: Collection[str], after: frozenset[StepId] = frozenset()) -> Step:
    """Take names of a pool, its adapters, out of the routes; the undo publishes them again. Members stay."""
    shift = Shift(
        pool=served.name,
        models=tuple(name for name in served.models if name not in names),
        algorithm=served.algorithm,
        before=(),
        after=(),
    )
    title = f"send nothing for {', '.join(sorted(names))}"
    return shift_step("withdraw", title, shift, named=served.models, after=after)


def drained(place: Place, limit: float = DRAIN_DEADLINE) -> Check:
    """Until the member has nothing in flight, or the deadline has come."""
    return Check(look=_named("see-member", place), expect="drained", within=limit, every=1.0, wished=True)


def ready_again(place: Place, *, within: float, stall: float) -> Check:
    """Until a member that was started again answers /health; one that only never does is not waited for longer."""
    return Check(
        look=_named("see-member", place),
        expect="healthy",
        data=(place.replica, place.pool),
        within=within,
        stall=stall,
        every=2.0,
        wished=True,
    )


def good_enough(words: str) -> Check:
    """Watch, once; `words` is a `judgement.Watch`. A process that died over it watches anew."""
    return Check(look=Command(argv=("watch", words), mutates=False), expect="judged")


def always() -> Check:
    """What needs no look: there is nothing to do on the way forward."""
    return Check(look=Command(argv=("nothing",), mutates=False), expect="said-so")


def _named(act: str, what: Shift | Place, *, mutates: bool = False) -> Command:
    return Command(argv=(act, msgspec.json.encode(what).decode()), mutates=mutates)


def said_so(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the act that looks says yes."""
    del data
    return Holds() if answer.ok else Waits(reason=answer.stderr)


def judged(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the watch ended well; its reason when not."""
    del data
    if answer.ok:
        return Holds()
    return Fails(
        answer.stderr,
        "the old replicas serve again; look at the logs of the new ones in the metrics and logs you keep",
    )


def nothing_in_flight(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether nobody counts a request in flight, and somebody counts."""
    del data
    lines = answer.stdout.splitlines()
    if len(lines) < 2:
        return CannotTell("the member was not asked")
    known = [line for line in lines[:2] if line != "?"]
    if not known:
        return Waits(reason="what is in flight is not known: neither a proxy nor its metrics page answers")
    if all(line == "0" for line in known):
        return Holds()
    return Waits(progress=" ".join(known), reason=f"{max(known, key=int)} request(s) in flight")


def healthy(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether a member that was started again answers /health."""
    replica, pool = data or ("a replica", "")
    state, _, log = (answer.stdout.splitlines() or ["?"])[-1].partition(" ")
    if state == "ready":
        return Holds()
    if state in DOWN:
        return Fails(f"the replica that was started again is {state}", "look at its log: `docker logs`")
    return Waits(
        progress=f"{state} {log}",
        reason=f"{replica} was started again and is not ready yet ({'not asked' if state == '?' else state})",
        hint=f"proxies send it nothing until it answers: gpufleet pool logs {pool} {replica}".rstrip(),
    )


PREDICATES: Mapping[str, Predicate] = {
    "said-so": said_so,
    "judged": judged,
    "drained": nothing_in_flight,
    "healthy": healthy,
}
