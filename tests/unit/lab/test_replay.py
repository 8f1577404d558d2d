"""The replay of traffic: the engine model by hand, traces of both forms, made traffic, and who wins where."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from gpufleet.errors import UsageError
from gpufleet.lab.replay import baselines, flow, traces, workloads
from gpufleet.lab.replay.model import Arrival, Engines, Trace
from gpufleet.lab.replay.simulate import Engine, replay
from gpufleet.proxy.decide.load import Load

TRACES = Path(__file__).parents[4] / "shared" / "traces"


def run(name, trace, engines=None, seed=1):
    ticks = itertools.count()
    return replay(
        name=name,
        policy=baselines.make(name, trace.block_tokens),
        trace=trace,
        engines=engines or Engines(),
        dice=random.Random(seed),
        timer=lambda: float(next(ticks)),
    )


def test_an_engine_reads_one_prompt_after_the_other_without_what_it_has():
    engine = Engine(0, 1000.0, 4, Load())
    assert engine.read(0.0, 2000, [1, 2, 3], 512) == (2.0, 0)
    wait, cached = engine.read(1.0, 2000, [1, 2, 9], 512)
    assert (round(wait, 6), cached) == (1.976, 1024)  # it waits for the first
    assert engine.read(100.0, 512, [1], 512) == (0.0, 512)
    assert engine.read(100.0, 3000, [5, 6, 7, 8, 9], 512) == (3.0, 0)
    wait, cached = engine.read(200.0, 512, [1], 512)
    assert (round(wait, 6), cached) == (0.512, 0)  # others used its four blocks since


def test_policies_see_what_is_in_flight_until_the_last_token():
    one = Arrival(at=0.0, prompt=1000, output=10)
    trace = Trace(
        name="t",
        block_tokens=512,
        arrivals=(one, *(Arrival(at=at, prompt=1, output=1) for at in (1.2, 1.3, 9.0))),
    )
    engines = Engines(count=2, prefill=1000.0, decode=0.1)
    outcome = run("least-busy", trace, engines)
    assert outcome.balance == 1.0  # the first; then the other and, as that one is done, again by turns
    assert outcome.waits == pytest.approx((0.001, 0.001, 0.001, 1.0))
    assert outcome.ttft_mean == pytest.approx(1.003 / 4)


@pytest.mark.parametrize("name", baselines.names())
def test_the_same_seed_is_the_same_outcome(name):
    trace = workloads.make("chat", 300, 5)
    assert trace == workloads.make("chat", 300, 5)
    first, second = (run(name, trace, seed=3) for _ in range(2))
    assert first == second
    assert first.requests == 300


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_made_traffic_is_a_trace(name):
    trace = workloads.make(name, 500, 2)
    assert len(trace.arrivals) == 500
    assert [one.at for one in trace.arrivals] == sorted(one.at for one in trace.arrivals)
    assert trace != workloads.make(name, 500, 3)
    before: dict[int, int] = {}
    for one in trace.arrivals:
        assert len(one.blocks) == one.prompt // trace.block_tokens
        for parent, key in itertools.pairwise((0, *one.blocks)):
            assert before.setdefault(key, parent) == parent  # a key stands for all before it
    shares = sum(
        count > 1 for count in Counter(itertools.chain(*(one.blocks for one in trace.arrivals))).values()
    )
    assert bool(shares) is (name != "bursts")


@pytest.mark.parametrize("name", workloads.WORKLOADS)
@pytest.mark.parametrize("speed_up", [0.5, 2.0])
def test_cache_aware_is_as_good_as_the_best_on_made_traffic(name, speed_up):
    """The parameters were not chosen on these."""
    trace = workloads.make(name, 1500, 11).scaled(speed_up)
    means = {
        policy: run(policy, trace, Engines(cache_tokens=200_000)).ttft_mean
        for policy in ("cache-aware", "round-robin", "least-busy", "least-pending", "greedy", "scored")
    }
    assert means["cache-aware"] <= means["round-robin"]
    assert means["cache-aware"] <= 1.1 * min(means.values()), means


def test_slower_engines_are_found_out_in_a_replay():
    trace = workloads.make("documents", 1500, 4).scaled(0.4)
    engines = Engines(speeds=(1.0, 1.0, 0.25, 0.25))
    assert run("cache-aware", trace, engines).ttft_mean < run("greedy", trace, engines).ttft_mean


def test_lines_of_mooncake_are_read():
    lines = [
        {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 8]},
        {"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [0]},
    ]
    text = "\n".join(map(json.dumps, lines)).encode() + b"\n\n"
    trace = traces.parse("x.jsonl", text)
    assert trace.arrivals == (
        Arrival(at=0.0, prompt=512, output=1, blocks=[0]),
        Arrival(at=2.0, prompt=1100, output=5, blocks=[0, 7]),  # the third block is not full
    )
    assert len(traces.parse("x.jsonl", text, first=1).arrivals) == 1
    assert trace.scaled(4).arrivals[1].at == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,3180,8\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4808,10,4818,x\n6.5,GPT-4,3180,8,1,x\n",
    ],
)
def test_csv_traces_are_read(text):
    trace = traces.parse("azure.CSV", text.encode())
    assert [(round(one.at, 3), one.prompt, one.output) for one in trace.arrivals] == [
        (0.0, 4808, 10),
        (1.5, 3180, 8),
    ]


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("x.jsonl", b"", "x.jsonl"),
        ("x.jsonl", b'{"timestamp": 1}\n', "x.jsonl:1"),
        (
            "x.jsonl",
            b'{"timestamp": 1, "input_length": -5, "output_length": 5, "hash_ids": []}\n',
            "x.jsonl:1",
        ),
        ("x.jsonl", b"\xff\xfe\n", "x.jsonl:1"),
        ("x.csv", b"", "x.csv:1"),
        ("x.csv", b"TIMESTAMP,Context,Generated\n", "x.csv:1"),
        ("x.csv", b"timestamp,input_length,output_length\n1,2,3\n1,two,3\n", "x.csv:3"),
        ("x.csv", b"timestamp,input_length,output_length\n1,2\n", "x.csv:2"),
        ("x.csv", b"timestamp,input_length,output_length\nnan,2,3\n", "x.csv:2"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(name, text, where):
    with pytest.raises(UsageError) as refused:
        traces.parse(name, text)
    assert refused.value.where == where


def test_unknown_names_are_told_with_those_there_are(tmp_path):
    with pytest.raises(UsageError) as refused:
        flow.policies(["least-bussy"])
    assert "least-busy" in refused.value.hints[0]
    with pytest.raises(UsageError) as refused:
        flow.traffic(str(tmp_path / "none.jsonl"), first=None, speed_up=1.0, seed=1)
    assert "agents" in refused.value.hints[0]


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside this checkout")
def test_the_public_conversations_rank_the_policies_as_published_figures_do():
    """Eight engines, 1,000 blocks each, 2.5 times as fast; also the larger form of case 25."""
    path = TRACES / "mooncake_conversation_trace.jsonl"
    trace = traces.parse(str(path), path.read_bytes()).scaled(2.5)
    engines = Engines(prefill=15_928.0, cache_tokens=512_000)
    names = ("cache-aware", "least-pending", "least-busy", "round-robin", "random")
    found = {name: run(name, trace, engines) for name in names}
    means = [found[name].ttft_mean for name in names]
    assert means == sorted(means)
    assert found["round-robin"].ttft_mean == pytest.approx(2.78, rel=0.05)
    assert found["least-busy"].ttft_mean == pytest.approx(2.57, rel=0.1)
    assert found["cache-aware"].ttft_mean == pytest.approx(0.95, rel=0.1)
    assert found["cache-aware"].balance < 1.5  # every request begins with the same 512 tokens
