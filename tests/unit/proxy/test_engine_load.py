"""Loads read off engines' pages: every generation, several engines, and what is not there."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.engine_load import Distribution, EngineLoad, parse
from gpufleet.proxy.wire.exposition import Picker, parse_labels
from tests.kit.engine_pages import GENERATIONS, Engine, page

CORPUS = Path(__file__).parents[4] / "shared" / "fixtures" / "metrics"
LABELLED = [release for release, told in GENERATIONS.items() if told.labelled]


@pytest.mark.parametrize("release", GENERATIONS)
def test_one_engine_of_every_generation(release):
    load = parse(page(release))
    assert (load.running, load.waiting, load.kv_used, load.kv_used_mean) == (3, 2, 0.5, 0.5)
    assert load.kv_tokens == 32_000
    assert load.finished == {"stop": 400, "length": 400}
    spread = Distribution(total=2.5, count=5, buckets=((0.1, 1), (1.0, 4), (math.inf, 5)))
    assert (load.ttft, load.inter_token) == (spread, spread)
    assert spread.mean == 0.5
    assert load.adapters == ("law", "sql")  # the newest of two series
    assert load.missing == ()
    assert load.swapped == (1.0 if GENERATIONS[release].swapped else None)
    assert load.asleep == (False if GENERATIONS[release].sleep else None)
    known = bool(GENERATIONS[release].prefix)
    assert (load.prefix_queries, load.prefix_hits) == ((1000, 400) if known else (None, None))


@pytest.mark.parametrize("release", LABELLED)
def test_several_engines_are_summed_and_the_fullest_cache_kept(release):
    load = parse(
        page(release, Engine(running=9, waiting=4, used=0.91), Engine(running=2, waiting=0, used=0.31))
    )
    assert (load.running, load.waiting, load.engines) == (11, 4, 2)
    assert load.kv_used == 0.91
    assert load.kv_used_mean == pytest.approx(0.61)
    assert load.kv_tokens == 64_000
    assert (load.prefix_queries, load.prefix_hits) == (2000, 800)
    assert load.ttft is not None
    assert (load.ttft.total, load.ttft.count, load.ttft.buckets[1]) == (5.0, 10, (1.0, 8))


def test_a_renamed_figure_is_neither_zero_nor_counted_twice():
    """Case 13: old name, both names, new name, and decoys beside it."""
    old = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.91\n'
    new = b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.91\n'
    decoys = (
        b'vllm:num_requests_waiting_by_reason{model_name="m",reason="capacity"} 5.0\n'
        b'vllm:prefix_cache_hits_created{model_name="m"} 1.788e+09\n'
        b'vllm:external_prefix_cache_hits_total{model_name="m"} 999\n'
        b"other:kv_cache_usage_perc 0.2\nxvllm:kv_cache_usage_perc 0.3\n"
    )
    for text in (old, new, old + new, new + decoys):
        assert parse(text).kv_used == 0.91
    assert parse(decoys) == EngineLoad()
    assert parse(decoys).missing == ("running", "waiting", "kv_used")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "five", ""])
def test_what_is_no_figure_is_unknown_and_never_zero(value):
    text = (
        f'vllm:num_requests_running{{engine="0"}} 4\nvllm:num_requests_running{{engine="1"}} {value}\n'
        f'vllm:kv_cache_usage_perc{{engine="0"}} {value}\nvllm:generation_tokens_total {value}\n'
        f"vllm:time_to_first_token_seconds_sum {value}\nvllm:time_to_first_token_seconds_count 3\n"
        f'vllm:lora_requests_info{{running_lora_adapters="x"}} {value}\n'
    )
    load = parse(text.encode())
    if value in {"five", ""}:
        assert load.running == 4  # a line that is none
    else:
        assert load.running is None
    assert (load.kv_used, load.generation_tokens, load.ttft) == (None, None, None)
    assert load.adapters == (("x",) if value == "-1" else None)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="None"', None),
        ('block_size="16"', None),
        ('block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="99"', 99),
        ('block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="None"', 160),
        ('num_gpu_blocks="-3",block_size="16"', None),
    ],
)
def test_capacity(text, tokens):
    assert parse(f"vllm:cache_config_info{{{text}}} 1.0\n".encode()).kv_tokens == tokens


def test_one_part_of_a_histogram_says_nothing():
    assert parse(b'vllm:time_to_first_token_seconds_bucket{le="1.0"} 3\n').ttft is None
    assert parse(b"vllm:time_to_first_token_seconds_count 3\n").ttft is None
    empty = parse(b"vllm:time_to_first_token_seconds_sum 0\nvllm:time_to_first_token_seconds_count 0\n").ttft
    assert empty is not None
    assert empty.mean is None


def test_an_engine_that_sleeps():
    text = b'vllm:engine_sleep_state{engine="%d",sleep_state="awake"} %d\n'
    assert parse(text % (0, 1) + text % (1, 0)).asleep is True
    assert parse(text % (0, 1)).asleep is False


def test_labels_with_everything_in_them():
    text = rb'a="x\"y",le="0.5",b="c\\n\nd",braces="}{"'
    assert parse_labels(text) == {"a": 'x"y', "le": "0.5", "b": "c\\n\nd", "braces": "}{"}
    found = list(Picker(["m"]).samples(b'm{a="x} 5"} 7 1700000000 # {x="y"} 1\nm 8\nm9 1\n# m 3\n m 4\n'))
    assert found == [("m", b'a="x} 5"', 7.0), ("m", b"", 8.0)]


@given(st.binary(max_size=300))
def test_no_page_is_too_strange(content):
    parse(content)
    parse(b"vllm:num_requests_running{" + content)
    parse(b'vllm:lora_requests_info{running_lora_adapters="' + content + b'"} 1\n')


def test_a_hostile_page_costs_time_in_proportion():
    parse(b'vllm:num_requests_running{a="' + b"\\" * 400_001)
    parse(b"vllm:num_requests_running{" * 50_000)
    parse(b"\nvllm:num_requests_running" * 50_000)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of pages is not here")
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("metrics_vllm_v0_kubeai.txt", {"running": 3, "waiting": 5, "kv_tokens": 73_184, "swapped": 0}),
        ("metrics_vllm_0.10_both_names.txt", {"running": None, "prefix_queries": 32, "prefix_hits": 0}),
        ("metrics_vllm_dp2_engines.txt", {"running": 8, "waiting": 6, "kv_used": 0.72, "prefix_hits": 125}),
        ("metrics_gen_vllm_0.8.5.post1.txt", {"running": 9, "kv_used": 0.91, "prefix_hits": 84_000}),
        ("metrics_gen_vllm_0.10.2.txt", {"running": 9, "kv_used": 0.91, "prefix_hits": 84_000}),
        ("metrics_gen_vllm_0.12.0.txt", {"running": 9, "kv_used": 0.91, "kv_tokens": 432_000}),
        ("metrics_gen_vllm_0.33.0.txt", {"waiting": 4, "kv_used": 0.91, "kv_tokens": 432_000}),
        ("metrics_gen_vllm_0.33.0_dp2.txt", {"running": 11, "waiting": 4, "kv_used": 0.91, "engines": 2}),
    ],
)
def test_the_corpus(name, wanted):
    load = parse((CORPUS / name).read_bytes())
    assert {field: getattr(load, field) for field in wanted} == wanted


@pytest.mark.skipif(importlib.util.find_spec("prometheus_client") is None, reason="no prometheus_client here")
@pytest.mark.parametrize("release", GENERATIONS)
def test_agrees_with_the_client_library(release):
    """The same page read by Prometheus' own parser, summed by hand."""
    from prometheus_client.parser import text_string_to_metric_families

    content = page(release, Engine(running=7), Engine(running=1)) if release in LABELLED else page(release)
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(content.decode()):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    load = parse(content)
    assert load.running == sums["vllm:num_requests_running"]
    assert load.waiting == sums["vllm:num_requests_waiting"]
    assert sum(load.finished.values()) == sums["vllm:request_success_total"]
    assert load.ttft is not None
    assert load.ttft.count == sums["vllm:time_to_first_token_seconds_count"]
