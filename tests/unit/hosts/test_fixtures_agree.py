"""The parsers agree with rows that others read out of recorded nvidia-smi output, where that recording is at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes import nvidia_smi, nvidia_xml

FIXTURES = Path(__file__).parents[4] / "shared" / "fixtures" / "mig"
EXPECTED = FIXTURES / "expected.json"
pytestmark = pytest.mark.skipif(
    not EXPECTED.is_file(), reason="no recorded nvidia-smi output beside the checkout"
)


def cases(kind: str) -> list[str]:
    if not EXPECTED.is_file():
        return []
    expected = json.loads(EXPECTED.read_text("utf-8"))
    return [name for name, entry in expected.items() if entry["kind"] == kind]


def expected_rows(name: str) -> list[dict[str, object]]:
    rows = json.loads(EXPECTED.read_text("utf-8"))[name]["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize("name", cases("L"))
def test_listing(name):
    listing = nvidia_smi.parse_listing((FIXTURES / name).read_text("utf-8"))
    seen = [
        {
            "gpu": gpu.index,
            "model": gpu.name,
            "uuid": gpu.uuid,
            "mig": [{"dev": one.device, "name": one.name, "uuid": one.uuid} for one in gpu.slices],
        }
        for gpu in listing.gpus
    ]
    assert seen == expected_rows(name)
    assert listing.other_lines == ()


@pytest.mark.parametrize("name", cases("lgi"))
def test_gpu_instances(name):
    rows = nvidia_smi.parse_gpu_instances((FIXTURES / name).read_text("utf-8"))
    assert isinstance(rows, Known)
    seen = [
        {
            "gpu": row.gpu,
            "name": row.profile,
            "profile_id": row.profile_id,
            "gi": row.gi,
            "start": row.start,
            "size": row.size,
        }
        for row in rows.value
    ]
    assert sorted(seen, key=str) == sorted(expected_rows(name), key=str)


@pytest.mark.parametrize("name", cases("lci"))
def test_compute_instances(name):
    text = (FIXTURES / name).read_text("utf-8")
    rows = nvidia_smi.parse_compute_instances(text)
    wanted = expected_rows(name)
    if isinstance(rows, Unknown):
        assert wanted == []
        assert "Insufficient Permissions" in text
        return
    seen = [
        {
            "gpu": row.gpu,
            "gi": row.gi,
            "name": row.profile,
            "profile_id": row.profile_id,
            "ci": row.ci,
            "start": row.start,
            "size": row.size,
        }
        for row in rows.value
    ]
    assert sorted(seen, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*query-gpu-subset.csv")), ids=lambda path: path.name)
def test_query_with_header(path):
    text = path.read_text("utf-8")
    rows = nvidia_smi.parse_rows(text, nvidia_smi.QUERY_FIELDS, free="name")
    assert len(rows) == len(text.strip().splitlines()) - 1
    for row in rows:
        assert isinstance(nvidia_smi.parse_number(row["memory.total"]), Known)
        assert row["uuid"].startswith("GPU-")
        assert row["mig.mode.current"] in {"Enabled", "Disabled", "[N/A]"}


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*query-compute-apps.csv")), ids=lambda path: path.name)
def test_compute_apps(path):
    rows = nvidia_smi.parse_rows(path.read_text("utf-8"), nvidia_smi.APPS_FIELDS, free="process_name")
    assert rows
    for row in rows:
        assert row["gpu_uuid"].startswith("GPU-")
        assert "used_memory" in row


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.xml")), ids=lambda path: path.name)
def test_reports_join_slices(path):
    text = path.read_text("utf-8")
    report = nvidia_xml.parse_report(text)
    assert isinstance(report, Known)
    seen = [one for gpu in report.value.gpus if isinstance(gpu.slices, Known) for one in gpu.slices.value]
    assert len(seen) == text.count("<mig_device>")
    assert all(isinstance(one.gi, Known) and isinstance(one.ci, Known) for one in seen)
