"""Mistakes in a pool's arguments are told with file and line, all of them, before any host is asked."""

import pytest

from gpufleet.deploy.arguments import check
from gpufleet.engine.vllm import Vllm
from gpufleet.errors import DocumentError
from gpufleet.pools.load import from_file

WRONG = """\
pool: chat
model: m
engine:
  image: vllm/vllm-openai:v0.11.0
  args:
    - --max-model-len
    - 8192
    - --swap_spaces=4
    - --shutdown-timeouts=5
  env:
    CUDA_VISIBLE_DEVICES: MIG-377e0049
kv_offload: 16
limits:
  memory: 8g
"""


def written(tmp_path, text):
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    return from_file(path), path


def test_every_mistake_names_its_line(tmp_path):
    pool, path = written(tmp_path, WRONG)
    with pytest.raises(DocumentError) as caught:
        check(Vllm(), pool)
    assert caught.value.exit == 2
    assert [row.where for row in caught.value.rows] == [f"{path}:{line}" for line in (8, 9, 11, 12, 14)]
    assert "did you mean `--swap-space`?" in caught.value.rows[0].hint


def test_an_altered_engine_may_be_trusted_over_the_table(tmp_path):
    pool, path = written(tmp_path, WRONG.replace("engine:\n", "engine:\n  lint: warn\n"))
    told = check(Vllm(), pool)
    assert len(told) == 5
    assert told[0].startswith(f"{path}:9: vLLM 0.11.0 has no flag `--swap_spaces`")


def test_arguments_that_came_from_elsewhere_have_no_line(tmp_path):
    from dataclasses import replace

    pool, _ = written(tmp_path, "pool: chat\nmodel: m\nengine:\n  image: a/b:v0.20.0\n  args: [--task=x]\n")
    more = replace(pool, engine=replace(pool.engine, args=("--enforce-eager", *pool.engine.args)))
    with pytest.raises(DocumentError) as caught:
        check(Vllm(), more)
    assert caught.value.where == "pool chat, engine.args"
