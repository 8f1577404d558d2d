"""`gpufleet lab replay`: balancing policies against each other on one trace, in virtual time."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpufleet.cli.console import Answer, note
from gpufleet.cli.console import table as rendered
from gpufleet.errors import ExitCode, UsageError

Source = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace file (JSON lines of Mooncake, or CSV), or chat, agents, documents, bursts, mixed.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help="Try this one; may be repeated. All by default."),
]
Members = Annotated[int, typer.Option(min=1, max=1024, help="How many engines.")]
Cache = Annotated[
    int, typer.Option("--cache-tokens", min=1, metavar="N", help="Tokens that the cache of one engine holds.")
]
Prefill = Annotated[
    float, typer.Option(min=1, metavar="N", help="Prompt tokens that one engine reads in a second.")
]
Decode = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time for each token of an answer.")]
SpeedUp = Annotated[
    float, typer.Option("--speed-up", min=0.001, metavar="X", help="Let requests come X times as fast.")
]
First = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Only the first N requests of a file, or N made requests."),
]
Speeds = Annotated[
    str,
    typer.Option(
        metavar="A,B,...",
        help="How fast each engine reads, as a factor; gives the number of engines too.",
    ),
]
Seed = Annotated[int, typer.Option(help="Of the dice, and of traffic that is made.")]


def run(
    source: str,
    *,
    policy: list[str] | None,
    members: int,
    cache: int,
    prefill: float,
    decode: float,
    speed_up: float,
    first: int | None,
    speeds: str,
    seed: int,
) -> Answer:
    """The comparison. Raises `UsageError`."""
    from gpufleet.lab.replay import flow
    from gpufleet.lab.replay.model import Engines

    factors = _factors(speeds)
    engines = Engines(
        count=len(factors) or members, prefill=prefill, decode=decode, cache_tokens=cache, speeds=factors
    )
    names = flow.policies(policy or ())
    trace = flow.traffic(source, first=first, speed_up=speed_up, seed=seed)
    count = len(trace.arrivals)
    note(f"{count} requests over {trace.arrivals[-1].at:.0f} s, {engines.count} engines")
    outcomes = []
    for outcome in flow.compare(names, trace, engines, seed=seed, timer=time.thread_time):
        note(f"{outcome.policy}: {outcome.ttft_mean:.2f} s")
        outcomes.append(outcome)
    outcomes.sort(key=lambda one: one.ttft_mean)
    rows = [
        {
            "policy": one.policy,
            "ttft_mean": round(one.ttft_mean, 4),
            "ttft_p50": round(one.ttft_p50, 4),
            "ttft_p90": round(one.ttft_p90, 4),
            "ttft_p99": round(one.ttft_p99, 4),
            "hit_rate": round(one.hit_rate, 4),
            "balance": round(one.balance, 3),
            "decision_us": round(one.decision * 1e6, 1),
        }
        for one in outcomes
    ]
    return Answer(
        command="lab replay",
        outcome="ok",
        exit=ExitCode.OK,
        fields={
            "trace": source,
            "requests": count,
            "seconds": round(trace.arrivals[-1].at, 1),
            "engines": engines.count,
            "cache_tokens": cache,
            "policies": rows,
        },
        text=_text(rows),
    )


def _text(rows: list[dict[str, object]]) -> str:
    head = ("POLICY", "TTFT MEAN", "P50", "P90", "P99", "HITS", "BUSIEST", "DECISION")
    body = [
        (
            str(row["policy"]),
            *(f"{row[name]:.2f} s" for name in ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99")),
            f"{float(str(row['hit_rate'])):.1%}",
            f"{row['balance']:.2f}",
            f"{row['decision_us']:.0f} us",
        )
        for row in rows
    ]
    return (
        rendered(head, body)
        + "\nTime to first token in a model of engines (a queue and a cache each): trust the order, not the seconds."
    )


def _factors(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        factors = (0.0,)
    if not all(0.0 < factor < 1e6 for factor in factors):
        raise UsageError(f"`{text}` is not a list of factors above 0, as in 1,1,0.5", where="--speeds")
    return factors
