"""What a look into containers answers, and what is made of it."""

from __future__ import annotations

import pytest

from gpufleet.deploy.drift.inside import Inside, parse

LISTED = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 3g.40gb     Device  0: (UUID: MIG-2)\n"


@pytest.mark.parametrize(
    ("text", "status", "wanted"),
    [
        (LISTED, 0, Inside(devices=frozenset({"GPU-1", "MIG-2"}))),
        ("GPU 0: A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-GPU-1/7/0)\n", 0,
         Inside(devices=frozenset({"GPU-1", "MIG-GPU-1/7/0"}))),
        ("Failed to initialize NVML: Unknown Error\n", 255,
         Inside(devices=frozenset(), lost="Failed to initialize NVML: Unknown Error")),
        ("No devices were found\n", 6, Inside(devices=frozenset(), lost="No devices were found")),
        ('exec: "nvidia-smi": executable file not found in $PATH: unknown\n', 126,
         Inside(why="there is no nvidia-smi in the container", blind=True)),
        ("", 124, Inside(why="nvidia-smi did not answer within 20 s")),
        ("Error response from daemon: container x is not running\n", 1,
         Inside(why="Error response from daemon: container x is not running")),
    ],
)  # fmt: skip
def test_each_answer(text, status, wanted):
    found = parse(f"image sha256:9\ncontainer abc\n{text}status {status}\n")
    assert (found.image, dict(found.containers)) == ("sha256:9", {"abc": wanted})


def test_an_answer_that_stops_early_knows_nothing_of_the_rest():
    found = parse("image \ncontainer abc\nstatus 0\ncontainer def\nGPU 0")
    assert found.image == ""
    assert set(found.containers) == {"abc"}
