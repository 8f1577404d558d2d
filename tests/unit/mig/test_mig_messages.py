"""What nvidia-smi says of a change is taken for what it means, whatever its status."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.mig.messages import IDS, Object, Said, Verb, judge, verb_of

CAPTURES = Path(__file__).parents[4] / "shared" / "fixtures" / "mig"

BUS = "00000000:C1:00.0"
WORDS = [
    # verb, status, text, id, answer
    (Verb.MODE, 0, f"Enabled MIG Mode for GPU {BUS}\nAll done.", "mode-set", Said.DONE),
    (
        Verb.MODE,
        0,
        f"Warning: MIG mode is in pending enable state for GPU {BUS}:In use by another client\nAll done.",
        "mode-pending-in-use",
        Said.REFUSED,
    ),
    (
        Verb.MODE,
        0,
        f"Warning: MIG mode is in pending disable state for GPU {BUS}:Not Supported\nAll done.",
        "mode-pending-not-supported",
        Said.REFUSED,
    ),
    (
        Verb.MODE,
        0,
        f"Unable to enable MIG Mode for GPU {BUS}: Not Supported\nTreating as warning and moving on.\nAll done.",
        "mode-not-supported",
        Said.REFUSED,
    ),
    (
        Verb.MODE,
        19,
        f"Unable to disable MIG Mode for GPU {BUS}: In use by another client\nTerminating early due to errors.",
        "mode-in-use",
        Said.REFUSED,
    ),
    (Verb.RESET, 0, f"GPU {BUS} was successfully reset.\nAll done.", "reset", Said.DONE),
    (Verb.RESET, 255, f"GPU {BUS} is currently in use by another process.", "reset-in-use", Said.REFUSED),
    (Verb.RESET, 3, f"Resetting GPU {BUS} is not supported.", "reset-not-supported", Said.REFUSED),
    (
        Verb.CREATE,
        23,
        "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources",
        "create-no-room",
        Said.REFUSED,
    ),
    (Verb.CREATE, 255, "Failed to create GPU instances: Unknown Error", "create-unknown", Said.UNKNOWN),
    (
        Verb.CREATE,
        0,
        "Successfully created GPU instance ID  9 on GPU  0 using profile MIG 1g.10gb (ID 19)",
        "gpu-instance-created",
        Said.DONE,
    ),
    (
        Verb.CREATE,
        255,
        "Successfully created GPU instance ID  9 on GPU  0 using profile MIG 1g.10gb (ID 19)",
        "contradiction",
        Said.UNKNOWN,
    ),
    (
        Verb.DESTROY,
        19,
        "Unable to destroy GPU instance ID  3 from GPU  0: In use by another client",
        "destroy-in-use",
        Said.REFUSED,
    ),
    (Verb.DESTROY, 6, "No GPU instances found: Not Found", "none-found", Said.REFUSED),
    (Verb.CREATE, 3, "No MIG-enabled devices found.", "mig-off", Said.REFUSED),
    (
        Verb.MODE,
        18,
        "Failed to initialize NVML: Driver/library version mismatch",
        "driver-mismatch",
        Said.REFUSED,
    ),
    (Verb.MODE, 18, "", "driver-mismatch", Said.REFUSED),
    (Verb.CREATE, 15, "", "gpu-faulted", Said.REFUSED),
    (Verb.CREATE, 6, "No devices were found", "no-such-gpu", Said.REFUSED),
    (Verb.CREATE, 127, "", "no-nvidia-smi", Said.REFUSED),
    (Verb.CREATE, 124, "", "no-answer", Said.UNKNOWN),
    (Verb.CREATE, 0, "", "nothing-said", Said.UNKNOWN),
    (Verb.CREATE, 0, "MIG configuration applied successfully", "other-words", Said.UNKNOWN),
    (
        Verb.LOOK,
        255,
        "+------+\n| GPU instance profiles: |\n|======|\nFailed to display GPU instance profiles: Unknown Error",
        "unknown-error",
        Said.UNKNOWN,
    ),
    (Verb.LOOK, 0, "GPU-1, [Insufficient Permissions], [GPU requires reset]", "said", Said.DONE),
]


@pytest.mark.parametrize(("verb", "status", "text", "expected", "said"), WORDS)
def test_words_and_what_they_mean(verb, status, text, expected, said):
    verdict = judge(verb, text, status)
    assert (verdict.id, verdict.said) == (expected, said)
    assert verdict.said is Said.DONE or verdict.advice


CAPTURED = [
    # file, verb, status, id, instances that were made, ended
    ("a100-40gb-r450.cgi-no-ids", Verb.CREATE, 0, "gpu-instance-created", [(None, None)] * 2, []),
    ("a100-40gb-r450.cci-no-ids", Verb.CREATE_COMPUTE, 0, "compute-instance-created", [(1, None)], []),
    ("a30-535.183.01.cgi", Verb.CREATE, 0, "gpu-instance-created", [(3, None), (3, 0)], []),
    (
        "a100-40gb.cgi-order-insufficient",
        Verb.CREATE,
        23,
        "create-no-room",
        [(13, None), (11, None), (3, None)],
        [],
    ),
    ("a100-40gb.cgi-two-3g-then-1g", Verb.CREATE, 255, "create-no-room", [(2, None), (1, None)], []),
    (
        "h20-535.247.01.cgi-partial-invalid-argument",
        Verb.CREATE,
        2,
        "create-invalid",
        [(13, None), (14, None)],
        [],
    ),
    ("invalid-profile-name.cgi", Verb.CREATE, 2, "create-invalid", [], []),
    (
        "h100-80gb-57col.dgi",
        Verb.DESTROY,
        0,
        "gpu-instance-destroyed",
        [],
        [(at, None) for at in range(7, 14)],
    ),
    (
        "h100-80gb-57col.dci",
        Verb.DESTROY_COMPUTE,
        0,
        "compute-instance-destroyed",
        [],
        [(at, 0) for at in range(7, 14)],
    ),
    ("h100.dci-in-use", Verb.DESTROY_COMPUTE, 19, "compute-destroy-in-use", [], []),
    ("rtxpro6000-server.dgi-before-dci", Verb.DESTROY, 19, "destroy-in-use", [], []),
    ("h100-80gb-57col.mig1", Verb.MODE, 0, "mode-set", [], []),
    ("rtxpro6000-server.mig0-persistence-warning", Verb.MODE, 0, "mode-set", [], []),
    ("a30-535.183.01.mig1-pending-in-use", Verb.MODE, 0, "mode-pending-in-use", [], []),
    ("a100.mig-disable-pending", Verb.MODE, 0, "mode-pending-in-use", [], []),
    ("a100-passthrough-vm.mig1-pending-not-supported", Verb.MODE, 0, "mode-pending-not-supported", [], []),
    ("rtxpro6000-workstation-580.65.06.mig1-not-supported", Verb.MODE, 0, "mode-not-supported", [], []),
    ("rtxpro6000-workstation-580.65.06.lgip-none", Verb.LOOK, 0, "not-capable", [], []),
    ("a100.gpu-reset-in-use", Verb.RESET, 255, "reset-in-use", [], []),
    ("multi.gpu-reset-could-not", Verb.RESET, 255, "reset-in-use", [], []),
    ("a100.gpu-reset-ok", Verb.RESET, 0, "reset", [], []),
    ("a100-passthrough-vm.gpu-reset-not-supported", Verb.RESET, 3, "reset-not-supported", [], []),
    ("driver.cannot-communicate.rc9", Verb.MODE, 9, "driver-down", [], []),
    ("driver.nvml-mismatch.rc18", Verb.LOOK, 18, "driver-mismatch", [], []),
    ("driver.no-devices.rc6", Verb.CREATE, 6, "no-such-gpu", [], []),
    ("nonroot.lci-insufficient-permissions", Verb.LOOK, 4, "no-permission", [], []),
    ("a30-535.183.01.lgi-empty", Verb.LOOK, 6, "none-found", [], []),
    ("h100-default-580.173.02.lgi", Verb.LOOK, 3, "mig-off", [], []),
    ("h100-mig-580.173.02.table", Verb.LOOK, 0, "said", [], []),
    ("mig-container.query-compute-apps", Verb.LOOK, 0, "said", [], []),
]


@pytest.mark.parametrize(("name", "verb", "status", "expected", "made", "ended"), CAPTURED)
def test_captured_words(name, verb, status, expected, made, ended):
    path = next(
        (CAPTURES / f"{name}{end}" for end in (".txt", ".csv") if (CAPTURES / f"{name}{end}").exists()), None
    )
    if path is None:
        pytest.skip("this captured output is not beside the checkout")
    verdict = judge(verb, path.read_text("utf-8"), status)
    assert verdict.id == expected
    assert verdict.made == tuple(Object(*one) for one in made)
    assert verdict.ended == tuple(Object(*one) for one in ended)
    assert verdict.partial == (bool(made or ended) and verdict.said is not Said.DONE)
    assert ("persistence-off" in verdict.notes) == ("persistence" in name)


def test_what_a_command_asks():
    assert verb_of(("nvidia-smi", "mig", "-i", "GPU-1", "-cgi", "1g.10gb:0", "-C")) is Verb.CREATE
    assert verb_of(("nvidia-smi", "mig", "-i", "GPU-1", "-gi", "1", "-dgi")) is Verb.DESTROY
    assert (
        verb_of(("nvidia-smi", "mig", "-i", "GPU-1", "-gi", "1", "-ci", "0", "-dci")) is Verb.DESTROY_COMPUTE
    )
    assert verb_of(("nvidia-smi", "-i", "GPU-1", "-mig", "1")) is Verb.MODE
    assert verb_of(("nvidia-smi", "-i", "GPU-1", "--gpu-reset")) is Verb.RESET
    assert verb_of(("nvidia-smi", "-L")) is Verb.LOOK


def test_a_compute_instance_that_failed_is_no_success():
    text = (
        "Successfully created GPU instance ID  9 on GPU  0 using profile MIG 1g.10gb (ID 19)\n"
        "Unable to create a compute instance on GPU  0 GPU instance ID  9 using profile 0: In use by another client\n"
        "Failed to create compute instances: In use by another client\n"
    )
    verdict = judge(Verb.CREATE, text, 19)
    assert (verdict.id, verdict.said, verdict.partial) == ("compute-create-in-use", Said.REFUSED, True)
    assert verdict.made == (Object(gi=9),)


@given(st.sampled_from(list(Verb)), st.text(max_size=200), st.integers(0, 255))
def test_every_text_has_a_verdict(verb, text, status):
    verdict = judge(verb, text, status)
    assert verdict.id in IDS
    assert verdict.said is not Said.DONE or status == 0
