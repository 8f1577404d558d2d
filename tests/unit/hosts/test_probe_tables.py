"""Recorded answers of programs and what is read out of them: `tests/tables/probes/<probe>/<case>/`.

A new case is a folder with `output.txt` and `facts.json`; no Python is written for it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.hosts.encode import plain
from gpufleet.hosts.probes import container, nvidia_smi, nvidia_xml, system
from gpufleet.hosts.probes.script import Section

TABLES = Path(__file__).parents[2] / "tables" / "probes"


def section(text: str) -> Section:
    return Section(name="probe", text=text, status=0)


PARSERS = {
    "list": nvidia_smi.parse_listing,
    "query": lambda text: nvidia_smi.parse_rows(text, nvidia_smi.QUERY_FIELDS, free="name"),
    "apps": lambda text: nvidia_smi.parse_rows(text, nvidia_smi.APPS_FIELDS, free="process_name"),
    "lgi": nvidia_smi.parse_gpu_instances,
    "lci": nvidia_smi.parse_compute_instances,
    "report": nvidia_xml.parse_report,
    "containers": container.parse,
    "disks": lambda text: system.parse_disks(section(text)),
    "listening": lambda text: system.parse_ports(section(text), None),
    "sockets": lambda text: system.parse_ports(None, section(text)),
    "lease": lambda text: system.parse_lease(section(text)),
}
CASES = sorted(path.parent for path in TABLES.glob("*/*/output.txt") if path.parent.parent.name != "host")


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recorded_answer(case):
    parsed = PARSERS[case.parent.name]((case / "output.txt").read_text("utf-8"))
    assert plain(parsed) == json.loads((case / "facts.json").read_text("utf-8"))


def test_every_probe_has_cases():
    assert {path.parent.name for path in CASES} == set(PARSERS)
