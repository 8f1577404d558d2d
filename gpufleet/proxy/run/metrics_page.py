"""Everything that `/metrics` shows of one process: what it counted, and what is read off where it lives.

A figure that an engine's page does not give, or gave too long ago, has no line: absent is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpufleet.proxy.decide.engine_load import EngineLoad
from gpufleet.proxy.decide.health import Verdict
from gpufleet.proxy.decide.metrics import Family, Labels, Merge, gauge
from gpufleet.proxy.run.member import Seat
from gpufleet.proxy.run.state import ProxyState

_NAMES = ("pool", "endpoint")


def families(state: ProxyState) -> list[Family]:
    """The page of this process."""
    return [*state.metrics.families(), *_members(state), *_indexes(state), *_loads(state), *_own(state)]


def _members(state: ProxyState) -> Iterator[Family]:
    seats = [((pool.name, seat.id), seat) for pool in state.fleet.table.pools.values() for seat in pool.seats]
    shown: tuple[tuple[str, str, Merge, Callable[[Seat], float]], ...] = (
        (
            "in_flight",
            "Requests in flight on a member, from every pool.",
            "sum",
            lambda seat: seat.member.running,
        ),
        (
            "in_flight_elsewhere",
            "What each process counts for the others of this proxy, summed; with one process it is 0.",
            "sum",
            lambda seat: seat.member.elsewhere,
        ),
        (
            "pending_prompt_tokens",
            "Tokens of prompts that a member has to read, as far as its cache is known; 0 unless a policy counts them.",
            "sum",
            lambda seat: seat.load.pending,
        ),
        (
            "requests_of_others",
            "Requests of other clients on a member, by its own page.",
            "max",
            lambda seat: seat.load.outside,
        ),
        (
            "endpoint_healthy",
            "1: health lets it be asked.",
            "min",
            lambda seat: seat.verdict is Verdict.UP,
        ),
        ("endpoint_draining", "1: it gets nothing new.", "max", lambda seat: seat.draining),
        ("endpoint_weight", "Its weight in the pool.", "max", lambda seat: seat.weight),
    )
    for name, help_, merge, read in shown:
        values: dict[Labels, float] = {labels: read(seat) for labels, seat in seats}
        yield gauge(f"gpufleet_proxy_{name}", help_, _NAMES, values, merge=merge)
    states: dict[Labels, float] = {
        (*labels, verdict.value): float(seat.verdict is verdict)
        for labels, seat in seats
        for verdict in Verdict
    }
    yield gauge(
        "gpufleet_proxy_endpoint_state",
        "1 for what is held to be true of a member.",
        (*_NAMES, "state"),
        states,
        merge="max",
    )


_LOAD: tuple[tuple[str, str, Callable[[EngineLoad], float | None]], ...] = (
    ("requests_running", "Requests that the engine works on.", lambda load: load.running),
    ("requests_waiting", "Requests in the engine's queue.", lambda load: load.waiting),
    (
        "kv_cache_used_ratio",
        "Share of the KV cache in use, of the fullest engine.",
        lambda load: load.kv_used,
    ),
    (
        "kv_cache_used_mean_ratio",
        "Share of the KV cache in use, over all engines of the member.",
        lambda load: load.kv_used_mean,
    ),
    ("kv_cache_tokens", "Tokens that the KV cache holds.", lambda load: load.kv_tokens),
    (
        "prefix_cache_queries",
        "Tokens looked up in the prefix cache since the engine started.",
        lambda load: load.prefix_queries,
    ),
    ("prefix_cache_hits", "Tokens found there.", lambda load: load.prefix_hits),
    ("preemptions", "Preemptions since the engine started.", lambda load: load.preemptions),
    ("prompt_tokens", "Prompt tokens since the engine started.", lambda load: load.prompt_tokens),
    ("generation_tokens", "Generated tokens since the engine started.", lambda load: load.generation_tokens),
    (
        "ttft_mean_seconds",
        "Mean time to the first token since the engine started, by its own clock.",
        lambda load: load.ttft.mean if load.ttft else None,
    ),
    (
        "inter_token_mean_seconds",
        "Mean time between tokens since the engine started, by its own clock.",
        lambda load: load.inter_token.mean if load.inter_token else None,
    ),
    ("asleep", "1: the engine sleeps.", lambda load: None if load.asleep is None else float(load.asleep)),
)


def _indexes(state: ProxyState) -> Iterator[Family]:
    pools = {name: pool.learner for name, pool in state.fleet.table.pools.items()}
    blocks: dict[Labels, float] = {(name,): learner.entries for name, learner in pools.items() if learner}
    yield gauge(
        "gpufleet_proxy_prefix_index_blocks",
        "Blocks of prompts that members are thought to have; some 400 bytes each, a million at most in each pool and process.",
        ("pool",),
        blocks,
    )


def _loads(state: ProxyState) -> Iterator[Family]:
    now = state.loop.time()
    stale = state.config.scrape.stale
    fresh: dict[Labels, EngineLoad] = {}
    ages: dict[Labels, float] = {}
    for pool in state.fleet.table.pools.values():
        for seat in pool.seats:
            member = seat.member
            if member.load is not None:
                age = now - member.load_at
                ages[pool.name, seat.id] = round(age, 3)
                if age <= stale:
                    fresh[pool.name, seat.id] = member.load
    for name, help_, read in _LOAD:
        values = {labels: value for labels, load in fresh.items() if (value := read(load)) is not None}
        yield gauge(f"gpufleet_proxy_engine_{name}", help_, _NAMES, values, merge="max")
    yield gauge(
        "gpufleet_proxy_engine_load_age_seconds",
        "Since the engine's page was read; what it says stops being shown when this passes the limit.",
        _NAMES,
        ages,
        merge="min",
    )


def _own(state: ProxyState) -> Iterator[Family]:
    own: tuple[tuple[str, str, Merge, float], ...] = (
        ("requests_in_flight", "Requests between dispatch and last byte.", "sum", state.in_flight),
        ("client_connections", "Open connections of clients.", "sum", len(state.clients)),
        (
            "buffered_bytes",
            "Bodies of requests that arrive or wait for their engines.",
            "sum",
            state.buffered,
        ),
        (
            "upstream_connections",
            "Open connections to engines.",
            "sum",
            sum(len(member.connections.open) for member in state.fleet.members.values()),
        ),
        (
            "route_generation",
            "Generation of the route table in use; of several workers the oldest.",
            "min",
            state.fleet.table.generation,
        ),
        ("start_time_seconds", "When it started, in seconds since 1970.", "min", state.started),
    )
    for name, help_, merge, value in own:
        yield gauge(f"gpufleet_proxy_{name}", help_, (), {(): value}, merge=merge)
