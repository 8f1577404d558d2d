"""What an engine reserves of a GPU that it shares."""

import pytest

from gpufleet.engine.vllm import Vllm, utilization
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, Pool, SliceWish


def pool(share, *args):
    image = "vllm/vllm-openai:v0.20.1"
    return Pool(
        name=PoolName("chat"),
        model="m",
        slice=SliceWish(share=share),
        engine=EngineWish(image=image, args=args),
    )


@pytest.mark.parametrize("count", range(1, 100))
def test_what_equal_shares_reserve_stays_below_what_one_engine_would(count):
    share = 100 // count
    assert count * float(utilization(pool(share))) <= 0.90 or share == 1
    assert float(utilization(pool(share))) > 0


@pytest.mark.parametrize(
    "argument", ["--gpu-memory-utilization=0.9", "--kv_cache_memory_bytes=1", "--gpu-memory-utilization"]
)
def test_an_argument_that_reserves_something_else_is_refused(argument):
    (fault,) = [one for one in Vllm().faults(pool(50, argument)) if "slice.share" in one.message]
    assert fault.sure
    assert fault.at == 0
    assert not any("slice.share" in one.message for one in Vllm().faults(pool(None, argument)))
