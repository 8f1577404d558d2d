from __future__ import annotations

import json

from gpufleet.hosts.encode import encode
from tests.unit.hosts.answers import facts, healthy, sliced

GPU_FIELDS = {
    "index",
    "uuid",
    "name",
    "memory_total_mib",
    "memory_used_mib",
    "temperature_c",
    "utilization_pct",
    "mig",
    "processes",
    "unknown",
}
SLICE_FIELDS = {"uuid", "profile", "gi", "ci", "start", "size", "memory_mib"}


def test_documented_fields_of_gpus():
    seen = json.loads(json.dumps(encode(facts(sliced()))))
    (gpu,) = seen["gpus"]
    assert set(gpu) >= GPU_FIELDS
    assert set(gpu["mig"]) == {"capable", "current", "pending", "instances", "gpu_instances", "unknown"}
    assert all(set(one) == SLICE_FIELDS | {"unknown"} for one in gpu["mig"]["instances"])
    assert gpu["mig"]["instances"][1]["profile"] == "1g.10gb+me"


def test_what_was_not_read_is_null_with_its_reason_and_never_zero():
    gpu = json.loads(json.dumps(encode(facts(sliced()))))["gpus"][0]
    assert gpu["utilization_pct"] is None
    assert gpu["unknown"] == {"utilization_pct": "not available on this GPU"}


def test_unknown_lists_are_null():
    seen = json.loads(json.dumps(encode(facts({}))))
    for name in ("gpus", "containers", "disks", "listening", "runtime"):
        assert seen[name] is None
        assert seen["unknown"][name]


def test_ports_are_sorted_and_environments_stay_out():
    text = json.dumps(encode(facts(healthy())))
    assert json.loads(text)["listening"] == [22, 53, 8000, 9100]
    assert "never-shown" not in text
