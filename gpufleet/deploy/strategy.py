"""Order of replacement: which replicas change together, and what keeps serving meanwhile.

Theory of operation
===================

A *swap* is what cannot be torn apart: new replicas and the old ones whose GPUs or slices they take (*stopped*), or a
new one on a free slot and an old one that it relieves (*leaving*; it runs on, idle, until the commit). A *wave* is
some swaps that are made together. Inside a wave, in this order: its old members are taken out of the routes, drained,
stopped and kept; its new ones are started and asked by the gate; then the routes are published with the new members.
The next wave begins after that. The last wave's routes are published by the commit itself.

- all-at-once: one wave.
- rolling: first what stops nobody, `limit` new replicas at a time; then waves that stop at most `limit`. A swap that
  would stop more is refused: the limit could not be held.
- canary: one wave of `canary` new replicas that is watched; then the others, rolling.
- blue-green: one wave whose routes are switched by a step of their own, so that switching back is one step too.

At any moment of the way forward, and of the way back, which is its mirror, at most `limit` old replicas more than
before are out of service, and never fewer replicas serve than before less the limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.deploy.replicas import New, Present
from gpufleet.errors import Unplaceable
from gpufleet.pools.model import StrategyWish

SHARE = re.compile(r"(100|[1-9]?[0-9])%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """New replicas, the old ones that make room for them, and the old ones that they relieve."""

    start: tuple[New, ...] = ()
    stopped: tuple[Present, ...] = ()
    leaving: tuple[Present, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Swaps that are made together.

    Attributes:
        published: whether a step of its own publishes the routes, before the commit.
        watched: whether its new members are watched before anything else begins.
    """

    start: tuple[New, ...] = ()
    stopped: tuple[Present, ...] = ()
    leaving: tuple[Present, ...] = ()
    published: bool = False
    watched: bool = False


def count_of(wish: int | str, replicas: int, *, up: bool = False) -> int:
    """A number, or a share of `replicas` in percent: rounded down, or `up`, and never less than one."""
    if isinstance(wish, int):
        return max(1, wish)
    share = int(wish.removesuffix("%")) * replicas
    return max(1, -(-share // 100) if up else share // 100)


def swaps(
    start: Sequence[New], old: Sequence[Present], in_the_way: Sequence[frozenset[str]]
) -> tuple[Swap, ...]:
    """What cannot be torn apart, in the order of the new replicas.

    Args:
        start: new replicas.
        old: those that go, by which the new ones are relieved in this order.
        in_the_way: for each new replica, the containers (full ids) that it takes the place of.
    """
    found: list[tuple[list[int], set[str]]] = []
    for number, held in enumerate(in_the_way):
        met = [group for group in found if not group[1].isdisjoint(held)]
        merged = ([n for group in met for n in group[0]] + [number], set(held).union(*(g[1] for g in met)))
        found = [group for group in found if group not in met] + [merged]
    taken = {container for _, held in found for container in held}
    relieved = [one for one in old if one.up and one.container.id not in taken]
    made: list[Swap] = []
    for numbers, room in sorted(found, key=lambda group: min(group[0])):
        news = tuple(start[number] for number in sorted(numbers))
        stopped = tuple(one for one in old if one.container.id in room)
        leaving = tuple(relieved.pop(0) for _ in news if relieved) if not stopped else ()
        made.append(Swap(start=news, stopped=stopped, leaving=leaving))
    return tuple(made)


def waves(
    wish: StrategyWish,
    replicas: int,
    found: Sequence[Swap],
    serving: frozenset[str],
    surplus: Sequence[Present] = (),
) -> tuple[Wave, ...]:
    """The waves of a strategy.

    Args:
        wish: what the pool asks for.
        replicas: how many are wanted, for shares.
        found: the swaps.
        serving: containers (full ids) that get requests now.
        surplus: old replicas that nobody takes the place of; when all requests are switched at once, theirs are too.

    Raises:
        Unplaceable: a swap stops more replicas than may be unavailable.
    """
    if not found:
        return ()
    touched = any(one.container.id in serving for swap in found for one in (*swap.stopped, *swap.leaving))
    if wish.kind == "all-at-once" or not touched:
        return (_wave(found),)
    if wish.kind == "blue-green":
        whole = _wave(found, published=True, watched=wish.observe > 0)
        return (replace(whole, leaving=(*whole.leaving, *surplus)),)
    limit = count_of(wish.max_unavailable, replicas)
    if wish.kind == "rolling":
        return _rolled(found, limit, serving)
    ordered = _gentle_first(found, serving)
    first = _first(ordered, count_of(wish.canary, replicas, up=True))
    rest = ordered[len(first) :]
    # Canaries serve beside the old: whom they relieve goes on serving until the commit.
    watched = replace(_wave(first, published=True, watched=True), leaving=())
    return (watched, *_rolled(rest, limit, serving)) if rest else (watched,)


def _wave(found: Sequence[Swap], *, published: bool = False, watched: bool = False) -> Wave:
    return Wave(
        start=tuple(new for swap in found for new in swap.start),
        stopped=tuple(one for swap in found for one in swap.stopped),
        leaving=tuple(one for swap in found for one in swap.leaving),
        published=published,
        watched=watched,
    )


def _down(swap: Swap, serving: frozenset[str]) -> int:
    return sum(one.container.id in serving for one in swap.stopped)


def _gentle_first(found: Sequence[Swap], serving: frozenset[str]) -> tuple[Swap, ...]:
    """Those that stop nobody first; otherwise as they come."""
    return tuple(sorted(found, key=lambda swap: _down(swap, serving) > 0))


def _first(ordered: Sequence[Swap], count: int) -> tuple[Swap, ...]:
    """The fewest swaps that start `count` replicas."""
    chosen: list[Swap] = []
    for swap in ordered:
        if sum(len(one.start) for one in chosen) >= count:
            break
        chosen.append(swap)
    return tuple(chosen)


def _rolled(found: Sequence[Swap], limit: int, serving: frozenset[str]) -> tuple[Wave, ...]:
    groups: list[list[Swap]] = []
    for swap in _gentle_first(found, serving):
        down = _down(swap, serving)
        if down > limit:
            names = ", ".join(one.replica for one in swap.stopped)
            raise Unplaceable(
                f"{', '.join(new.replica for new in swap.start)} takes the place of {down} replicas ({names}), and "
                f"{limit} may be unavailable",
                hints=(f"allow it: --max-unavailable {down}", "or free a slot for it to start alongside"),
            )
        if groups and _fits([*groups[-1], swap], limit, serving):
            groups[-1].append(swap)
        else:
            groups.append([swap])
    return tuple(_wave(group, published=group is not groups[-1]) for group in groups)


def _fits(group: Sequence[Swap], limit: int, serving: frozenset[str]) -> bool:
    """Whether these may be made together; what stops nobody never waits for what does."""
    downs = [_down(swap, serving) for swap in group]
    if any(downs):
        return all(downs) and sum(downs) <= limit
    return sum(len(swap.start) for swap in group) <= limit


def downs(plan: Sequence[Wave], serving: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """For each wave, the replicas that are out of service in it; `serving`: container to replica."""
    return tuple(
        tuple(serving[one.container.id] for one in wave.stopped if one.container.id in serving)
        for wave in plan
    )
