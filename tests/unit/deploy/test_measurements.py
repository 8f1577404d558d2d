"""Figures of earlier starts: kept by combination, and damaged ones are as good as none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpufleet.deploy.measurements_file import context_of, key, load, measurement, save
from gpufleet.engine.measured import Figures
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, Pool

POOL = Pool(name=PoolName("chat"), model="m/x", engine=EngineWish(image="vllm/vllm-openai:v0.20.0"))
WORDS = ("serve", "m/x", "--served-model-name", "chat", "--max-model-len", "4096", "--max-num-seqs", "64")
FIGURES = Figures(weights_gib=15.27, available_gib=12.2, tokens=1000)


def test_a_start_is_kept_and_found(tmp_path: Path) -> None:
    made = measurement(
        FIGURES, POOL, WORDS, at="2026-01-01T00:00:00+00:00", run="r", replica="gpu-01/0", place="H100"
    )
    assert made is not None
    save(tmp_path, key(POOL, WORDS, "H100"), made)
    assert load(tmp_path, key(POOL, WORDS, "H100")) == made
    assert made.context == context_of(WORDS) == "4096"


def test_what_changes_memory_changes_the_key() -> None:
    base = key(POOL, WORDS, "H100")
    same = [word.replace("chat", "other").replace("4096", "8192") for word in WORDS]
    assert key(POOL, same, "H100") == base
    assert key(POOL, WORDS, "A100") != base
    assert key(POOL, (*WORDS, "--enforce-eager"), "H100") != base
    assert key(replace(POOL, model="m/y"), WORDS, "H100") != base
    assert key(replace(POOL, engine=EngineWish(image="b")), WORDS, "H100") != base


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "measured" / "k.json"
    path.parent.mkdir()
    for text in ("", "{", '{"version": 1}', '{"version": 9, "at": "", "weights_gib": 1}'):
        path.write_text(text)
        assert load(tmp_path, "k") is None
    assert load(tmp_path, "none") is None


def test_a_log_that_says_too_little_is_not_kept() -> None:
    few = Figures(weights_gib=1.0)
    assert measurement(few, POOL, WORDS, at="", run="r", replica="x/0", place="H100") is None
