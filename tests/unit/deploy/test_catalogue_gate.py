"""Every model of the shipped catalogue: a gate that fits it, and arguments that its image takes."""

import pytest

from gpufleet.deploy.catalogue import filled
from gpufleet.engine.kinds import kind_of
from gpufleet.engine.vllm import Vllm
from gpufleet.errors import UsageError
from gpufleet.models.load import shipped
from gpufleet.names import PoolName
from gpufleet.pools.model import GateWish, Pool

MODELS = shipped()


def pool(name, kind="auto"):
    return filled(Pool(name=PoolName("p"), model=name, gate=GateWish(kind=kind)), MODELS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bge-m3", "embedding"),
        ("whisper-large-v3", "transcription"),
        ("qwen3-8b", "chat"),
        ("deepseek-ocr", "chat"),
    ],
)
def test_the_modality_gives_the_gate(name, kind):
    assert kind_of(pool(name)) == kind
    assert kind_of(pool(name, "models")) == "models"


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_argument_of_the_catalogue_is_refused_by_its_own_image(name):
    try:
        wanted = pool(name)
    except UsageError:
        pytest.skip("the catalogue names no image for this model")
    assert [fault for fault in Vllm().faults(wanted) if fault.sure] == []
