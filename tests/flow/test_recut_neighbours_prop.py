"""No other GPU of a host is ever named by a command that changes something, whatever is asked and whatever fails."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpufleet
from gpufleet.errors import FleetError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.gpus import smi_cli
from gpufleet.lab.gpus.mishaps import DRAWN
from gpufleet.lab.gpus.simgpu import SimGpu, make_gpus
from gpufleet.mig import instances
from gpufleet.mig.commands import Target
from gpufleet.mig.model import Placed
from gpufleet.names import GpuUuid
from tests.kit.deploy_site import Site

CHANGES = frozenset({"-cgi", "-cci", "-dgi", "-dci", "-mig", "--gpu-reset", "-r", "-pm", "-c"})
BOARDS = ("H100-80GB", "A100-80GB", "A30-24GB")
LAYOUTS = ("none", "half", "whole", "balanced", "all-smallest")


@st.composite
def cuts(draw, board: str) -> tuple[str, ...]:
    """Slices that fit side by side, as `PROFILE:START`."""
    gpu: SimGpu = make_gpus("any", board, 1)[0]
    gpu.set_mig(enabled=True)
    for _ in range(draw(st.integers(0, 4))):
        profile = draw(st.sampled_from(gpu.board.profiles))
        free = gpu.free_starts(profile) if gpu.free_count(profile) else []
        if free:
            gpu.create(profile.name, draw(st.sampled_from(free)))
    return tuple(f"{one.profile.name}:{one.start}" for one in gpu.instances)


@st.composite
def scenes(draw):
    board = draw(st.sampled_from(BOARDS))
    cut = draw(st.dictionaries(st.integers(0, 7), cuts(board), max_size=8))
    index = draw(st.integers(0, 7))
    layout = draw(st.one_of(st.sampled_from(LAYOUTS), cuts(board).map(lambda one: ",".join(one) or "none")))
    mishap = draw(st.one_of(st.none(), st.sampled_from(DRAWN)))
    return board, cut, index, layout, mishap


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(scenes())
def test_a_neighbour_gpu_is_never_touched(scene):
    board, cut, index, layout, mishap = scene
    asked: list[tuple[list[str], list[str]]] = []
    real = smi_cli._chosen

    def seen(devices, words):
        chosen, rest = real(devices, words)
        asked.append((list(words), [gpu.uuid for gpu in chosen or ()]))
        return chosen, rest

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        site = Site(Path(folder), 1, f"8x{board}", layouts=cut)
        (lab,) = site.fleet
        before = site.slices()["gpu-01"]
        uuid = lab.gpus.gpus[index].uuid
        faults = (
            [Fault(kind=Kind.GPU_MISHAP, host="gpu-01", nth=5, detail=" ".join(mishap))] if mishap else []
        )
        patch.setattr(smi_cli, "_chosen", seen)
        try:
            site.recut(f"gpu-01:{index}", layout, *faults)
            undone = False
        except FleetError:
            undone = True
        after = site.slices()["gpu-01"]
    changing = [(words, chosen) for words, chosen in asked if CHANGES & set(words)]
    for words, chosen in changing:
        assert words[words.index("-i") + 1] == uuid, words
        assert chosen == [uuid], words
    assert [one for at, one in enumerate(after) if at != index] == [
        one for at, one in enumerate(before) if at != index
    ]
    if undone:
        assert after == before
    elif after != before:
        assert changing


def test_commands_that_change_a_gpu_cannot_be_built_without_its_uuid():
    slice_ = Placed(0, 1, "1g.10gb")
    target = Target(GpuUuid("GPU-2fa5cf01-9520-1bc1-995b-cc0c6d9bca7c"))
    made = [
        instances.create(target, slice_),
        instances.destroy(target, slice_),
        instances.mode(target, on=True, reset=True),
        instances.restore(target, [slice_], frozenset(), on=True, reset=True),
    ]
    for command in made:
        assert command.mutates
        assert command.argv[0] == target.uuid
        assert command.script.lstrip().splitlines()[3:5] == ["gpu=$1", "shift"]
    for word in ("", "0", "all", "GPU-0", None):
        with pytest.raises(ValueError, match="by its UUID"):
            Target(word)  # type: ignore[arg-type]  # None is what the type forbids, and the check too


def test_no_line_of_gpufleet_changes_a_gpu_that_it_does_not_name():
    root = Path(gpufleet.__file__).parent
    change = re.compile(r"nvidia-smi\b[^\n]*\s(-cgi|-cci|-dgi|-dci|-mig|--gpu-reset)\b")
    named = re.compile(r'-i (?:"\$gpu"|"\$uuid"|"\$1"|\{[a-z_.]+\})')
    wrong = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if "lab" not in path.relative_to(root).parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if change.search(line) and not named.search(line) and line.lstrip()[:1] not in {"#", '"'}
    ]
    assert wrong == []
