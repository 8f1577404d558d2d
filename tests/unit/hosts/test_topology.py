"""How GPUs are linked, as nvidia-smi prints it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes.topology import parse
from gpufleet.lab.gpus.simgpu import make_gpus
from gpufleet.lab.gpus.smi_tables import topology

BRIDGED = """\
\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV4\tSYS\tSYS\tPXB\t0-23\t0
GPU1\tNV4\t X \tSYS\tSYS\tPXB\t0-23\t0
GPU2\tSYS\tSYS\t X \tNODE\tSYS\t24-47\t1
GPU3\tSYS\tSYS\tNODE\t X \tSYS\t24-47\t1
NIC0\tPXB\tPXB\tSYS\tSYS\t X
"""


def test_a_bridge_joins_two_and_the_others_have_pcie():
    expected = {0: {1}, 1: {0}, 2: set(), 3: set()}
    assert parse(BRIDGED) == Known({at: Known(frozenset(peers)) for at, peers in expected.items()})


def test_a_switch_joins_all_and_the_terminal_codes_come_masked():
    text = "\n".join(topology(make_gpus("h", "H100-80GB", 8))).replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    found = parse(text)
    assert found == Known({at: Known(frozenset(range(8)) - {at}) for at in range(8)})
    cards = parse("\n".join(topology(make_gpus("h", "L40S-48GB", 4))))
    assert cards == Known({at: Known(frozenset()) for at in range(4)})


@pytest.mark.parametrize("cell", ["???", "N/A", "[Unknown Error]", "NVX"])
def test_a_link_that_is_not_understood_is_unknown_for_that_gpu_alone(cell):
    found = parse(BRIDGED.replace("GPU0\t X \tNV4", f"GPU0\t X \t{cell}"))
    assert isinstance(found, Known)
    assert isinstance(found.value[0], Unknown)
    assert found.value[1] == Known(frozenset({0}))


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "Failed to initialize NVML: Unknown Error", "GPU0"]
)
def test_no_matrix_is_unknown(text):
    assert isinstance(parse(text), Unknown)


def test_a_row_that_ends_early_is_unknown():
    found = parse("GPU0\tGPU1\nGPU0\t X \nGPU1\tNV4\t X ")
    assert isinstance(found, Known)
    assert isinstance(found.value[0], Unknown)


@given(st.text(alphabet="GPU01NVX \t\nSY\x1b[4m", max_size=200))
def test_any_text_is_read_without_a_fault(text):
    parse(text)
