"""LoRA adapters: what an engine starts with, and what it lists."""

import json

import pytest

from gpufleet.engine.adapters import Loaded, adapter_directories, loaded, reachable
from gpufleet.engine.vllm import Vllm, arguments
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, Pool


def pool(args=(), **changes):
    engine = EngineWish(image="vllm/vllm-openai:v0.20.2", args=tuple(args))
    return Pool(name=PoolName("chat"), model="m", engine=engine, **changes)


def test_adapters_are_started_with_and_mounted():
    wanted = pool(lora={"sql": "/srv/lora/sql", "fr": "org/fr"}, lora_from="/srv/lora")
    words = arguments(wanted, 1)
    at = words.index("--lora-modules")
    assert words[at - 1] == "--enable-lora"
    assert words[at + 1 :] == ("fr=org/fr", "sql=/srv/lora/sql")
    container = Vllm().container(wanted, key=None, devices=1)
    assert [mount.source for mount in container.mounts] == ["/srv/lora"]
    assert container.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_without_adapters_nothing_is_said_of_them():
    assert "--enable-lora" not in arguments(pool(), 1)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in Vllm().container(pool(), key=None, devices=1).environment
    assert "--lora-modules" not in arguments(pool(lora_from="/srv/lora"), 1)


def test_only_directories_that_are_not_mounted_anyway_are_mounted():
    wanted = pool(weights="/models", lora={"a": "/models/a", "b": "/srv/b", "c": "/srv/b/c", "d": "org/d"})
    assert adapter_directories(wanted) == ("/srv/b",)
    assert reachable(wanted, "/models/x") and reachable(wanted, "/srv/b/y")
    assert not reachable(wanted, "/srv/bad") and not reachable(wanted, "org/d")
    assert reachable(pool(), "org/d")


def test_the_same_said_twice_and_an_offline_hub_are_faults():
    (fault,) = Vllm().faults(pool(("--enable-lora",), lora_from="/srv"))
    assert fault.sure and fault.at == 0
    (fault,) = Vllm().faults(pool(weights="/models", lora={"d": "org/d"}))
    assert fault.sure and fault.key == "lora.d"
    assert Vllm().faults(pool(("--enable-lora", "--max-loras", "4"))) == ()


@pytest.mark.parametrize(("body", "found"), [("", None), ("[]", None), ('{"data": 1}', None)])
def test_what_is_no_list_of_models(body, found):
    assert loaded(body) is found


def test_what_an_engine_lists():
    cards = [{"id": "m", "root": "m", "parent": None}, {"id": "sql", "root": "/x", "parent": "m"}]
    assert loaded(json.dumps({"data": cards})) == (
        Loaded("m", "m", adapter=False),
        Loaded("sql", "/x", adapter=True),
    )
