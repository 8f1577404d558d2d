"""What engines say of their memory while they start."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine.measured import LINES, Figures, parse

NEW = """\
(EngineCore_DP0 pid=77) INFO 01-01 00:00:00 [gpu_model_runner.py:4090] Model loading took 15.27 GiB memory and 3.0 seconds
(EngineCore_DP0 pid=77) INFO 01-01 00:00:00 [gpu_worker.py:436] Available KV cache memory: 12.23 GiB
(EngineCore_DP0 pid=77) INFO 01-01 00:00:00 [kv_cache_utils.py:1314] GPU KV cache size: 89,040 tokens, Maximum concurrency
(EngineCore_DP0 pid=77) INFO 01-01 00:00:00 [gpu_model_runner.py:4811] Graph capturing finished in 4 secs, took 0.55 GiB
"""
OLD = """\
INFO 11-20 [model_runner.py:1077] Loading model weights took 14.9595 GB
INFO 11-20 [worker.py:232] the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.30GiB
INFO 11-20 [worker.py:232] model weights take 14.96GiB; non_torch_memory takes 1.79GiB; PyTorch activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 53.29GiB.
"""


def test_a_new_engine() -> None:
    assert parse(NEW) == Figures(weights_gib=15.27, available_gib=12.23, graphs_gib=0.55, tokens=89040)
    assert parse(NEW).useful


def test_an_old_engine() -> None:
    assert parse(OLD) == Figures(
        weights_gib=14.96, available_gib=53.29, activation_gib=1.26, non_torch_gib=1.79
    )


def test_of_several_ranks_the_largest_weights_and_the_smallest_cache_count() -> None:
    found = parse(NEW + NEW.replace("15.27", "15.30").replace("12.23", "12.20").replace("89,040", "88,000"))
    assert (found.weights_gib, found.available_gib, found.tokens) == (15.30, 12.20, 88000)


def test_every_line_that_matters_is_asked_for() -> None:
    kept = "".join(line for line in (NEW + OLD).splitlines(keepends=True) if re.search(LINES, line))
    assert parse(kept) == parse(NEW + OLD)


@given(log=st.text(max_size=200))
def test_a_log_that_says_nothing_gives_nothing(log: str) -> None:
    assert not parse(log).useful
