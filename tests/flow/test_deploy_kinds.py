"""Pools of models that do not chat: each passes a gate that fits it, and fails one that does not."""

import pytest

from gpufleet.errors import RolledBack
from gpufleet.pools.model import EngineWish, GateWish
from tests.kit.deploy_site import IMAGE, Site


def gate(kind="auto"):
    return GateWish(stall=30.0, within=200.0, every=2.0, kind=kind)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("BAAI/bge-m3", "embedding"),
        ("BAAI/bge-reranker-v2-m3", "rerank"),
        ("openai/whisper-large-v3", "transcription"),
        ("hexgrad/tts", "speech"),
        ("qwen/qwen2.5", "models"),
        ("qwen/qwen2.5", "completion"),
    ],
)
def test_each_kind_is_asked_its_own_question(tmp_path, model, kind):
    site = Site(tmp_path, 1)
    done = site.deploy(site.pool(model=model, served_name="it", replicas=2, gate=gate(kind)))
    assert done.outcome == "committed"
    assert len(site.routes()["chat"]) == 2


def test_arguments_tell_the_kind(tmp_path):
    site = Site(tmp_path, 1)
    engine = EngineWish(image=IMAGE, args=("--runner", "pooling"))
    assert site.deploy(site.pool(engine=engine, replicas=1, gate=gate())).outcome == "committed"


def test_without_curl_the_containers_python_asks(tmp_path):
    site = Site(tmp_path, 1, without=frozenset({"curl"}))
    pool = site.pool(model="BAAI/bge-m3", replicas=1, gate=gate("embedding"))
    assert site.deploy(pool).outcome == "committed"


def test_a_model_of_another_kind_is_told_and_taken_back(tmp_path):
    site = Site(tmp_path, 1)
    with pytest.raises(RolledBack) as caught:
        site.deploy(site.pool(model="BAAI/bge-m3", replicas=1, gate=gate()))
    assert "gate.kind" in str(caught.value.hints) + str(caught.value.rows)
    assert site.pools_containers() == {"gpu-01": []}


def test_a_flag_that_this_version_lacks_is_refused_by_the_engine_too(tmp_path):
    site = Site(tmp_path, 1)
    engine = EngineWish(image=IMAGE, args=("--task", "embed"), lint="warn")
    with pytest.raises(RolledBack) as caught:
        site.deploy(site.pool(engine=engine, replicas=1, gate=gate("embedding")))
    assert "unrecognized arguments: --task embed" in str(caught.value.rows) + str(caught.value)
    assert any("`--task` is gone in vLLM 0.20.0" in line for line in site.told)
