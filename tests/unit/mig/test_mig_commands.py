"""No command without the UUID of one GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts.model import Known
from gpufleet.mig import commands
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.commands import Target
from gpufleet.mig.layout import Wanted
from gpufleet.mig.model import Placed
from gpufleet.mig.outlook import outlook
from gpufleet.mig.plan import LayoutChange, plan
from gpufleet.mig.seen import SeenGpu, SeenSlice
from gpufleet.names import GpuUuid
from tests.kit import fleet_facts
from tests.unit.mig.boards_by_hand import states

UUID = "GPU-2fa5cf01-9520-1bc1-995b-cc0c6d9bca7c"


@pytest.mark.parametrize(
    "word", ["", "0", "all", "GPU-", f"{UUID},{UUID}", f"{UUID} ", "MIG-" + UUID[4:], "-i", None, 0]
)
def test_a_target_is_one_uuid(word):
    with pytest.raises(ValueError, match="by its UUID"):
        Target(word)


@given(st.text(max_size=60))
def test_no_other_text_is_a_target(text):
    try:
        Target(GpuUuid(text))
    except ValueError:
        return
    assert text.startswith("GPU-")
    assert len(text) == len(UUID)


def test_one_object_a_command():
    target = Target(GpuUuid(UUID))
    assert commands.mode(target, on=True) == ("nvidia-smi", "-i", UUID, "-mig", "1")
    assert commands.create(target, Placed(4, 4, "3g.40gb")) == (
        "nvidia-smi",
        "mig",
        "-i",
        UUID,
        "-cgi",
        "3g.40gb:4",
        "-C",
    )
    assert commands.destroy_gpu_instance(target, 9) == ("nvidia-smi", "mig", "-i", UUID, "-gi", "9", "-dgi")


@given(st.data())
def test_a_neighbour_is_never_named(data):
    geometry = BOARDS["H100-80GB"]
    all_states = states("H100-80GB")
    before = data.draw(st.sampled_from(all_states))
    after = data.draw(st.sampled_from(all_states))
    uuids = [f"GPU-{number:08x}-9520-1bc1-995b-cc0c6d9bca7c" for number in range(8)]
    mine = data.draw(st.sampled_from(uuids))
    slices = tuple(
        SeenSlice(
            placed=one,
            gi=number + 1,
            cis=(0,),
            uuids=(f"MIG-{number}",),
            memory_mib=Known(1),
            containers=(),
            processes=(),
        )
        for number, one in enumerate(sorted(before))
    )
    gpu = fleet_facts.gpu("a", 0, uuid=GpuUuid(mine))
    seen = SeenGpu(gpu=gpu, geometry=geometry, slices=slices, on=True, pending=True, whole=())
    wanted = [Wanted(profile) for one in after if (profile := geometry.profile(one.profile))]
    change = plan(geometry, seen.placed, wanted)
    assert isinstance(change, LayoutChange)
    lines = outlook(seen, change).lines
    assert len(lines) == 2 * len(change.destroy) + len(change.create)
    for words in lines:
        assert words[words.index("-i") + 1] == mine
        assert not set(words) & set(uuids) - {mine}
