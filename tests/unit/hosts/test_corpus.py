"""Recorded nvidia-smi output of drivers R450 to 595, where it lies beside the checkout, and the same kinds mutilated.

Rows that stand in `expected.json` were read by others; those written here were read off the files by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts.model import GpuProcess, Known, Unknown
from gpufleet.hosts.probes import mig_tables, nvidia_smi, nvidia_table, nvidia_xml
from gpufleet.mig.messages import IDS, Verb, judge
from tests.unit.hosts.answers import TABLES, facts, healthy, recorded, section

CORPUS = Path(__file__).parents[4] / "shared" / "fixtures" / "mig"
EXPECTED = CORPUS / "expected.json"
here = pytest.mark.skipif(not EXPECTED.is_file(), reason="no recorded nvidia-smi output beside the checkout")
ROWS: Mapping[str, dict[str, Any]] = json.loads(EXPECTED.read_text("utf-8")) if EXPECTED.is_file() else {}
FILES = sorted(path for path in CORPUS.rglob("*") if path.suffix in {".txt", ".csv", ".xml"})


def text_of(name: str) -> str:
    return (CORPUS / name).read_text("utf-8")


def listing(text: str) -> list[dict[str, object]]:
    found = nvidia_smi.parse_listing(text)
    assert found.other_lines == ()
    return [
        {
            "gpu": gpu.index,
            "model": gpu.name,
            "uuid": gpu.uuid,
            "mig": [{"dev": one.device, "name": one.name, "uuid": one.uuid} for one in gpu.slices],
        }
        for gpu in found.gpus
    ]


def gpu_instances(text: str) -> list[dict[str, object]]:
    return [
        {
            "gpu": row.gpu,
            "name": row.profile,
            "profile_id": row.profile_id,
            "gi": row.gi,
            "start": row.start,
            "size": row.size,
        }
        for row in known(nvidia_smi.parse_gpu_instances(text))
    ]


def compute_instances(text: str) -> list[dict[str, object]]:
    return [
        {
            "gpu": row.gpu,
            "gi": row.gi,
            "name": row.profile,
            "profile_id": row.profile_id,
            "ci": row.ci,
            "start": row.start,
            "size": row.size,
        }
        for row in known(nvidia_smi.parse_compute_instances(text))
    ]


def profiles(text: str) -> list[dict[str, object]]:
    return [
        {
            "gpu": row.gpu,
            "name": row.name,
            "id": row.id,
            "free": row.free,
            "total": row.total,
            "gib": row.gib,
            "p2p": {True: "Yes", False: "No", None: None}[row.p2p],
            "sm": row.engines.sm,
            "dec": row.engines.decoders,
            "enc": row.engines.encoders,
            "ce": row.engines.copy,
            "jpeg": row.engines.jpeg,
            "ofa": row.engines.optical_flow,
        }
        for row in known(mig_tables.parse_profiles(text))
    ]


def placements(text: str) -> list[dict[str, object]]:
    return [
        {"gpu": row.gpu, "id": row.id, "starts": list(row.starts), "size": row.size}
        for row in known(mig_tables.parse_placements(text))
    ]


def known(fact):
    assert isinstance(fact, Known), fact
    return fact.value


KINDS: Mapping[str, Callable[[str], list[dict[str, object]]]] = {
    "L": listing,
    "lgi": gpu_instances,
    "lci": compute_instances,
    "lgip": profiles,
    "lgipp": placements,
}


@here
@pytest.mark.parametrize("name", ROWS)
def test_every_file_parses_to_its_rows(name):
    wanted = ROWS[name]
    text = text_of(name)
    if "Insufficient Permissions" in text:
        assert wanted["rows"] == []
        assert isinstance(nvidia_smi.parse_compute_instances(text), Unknown)
        return
    for spoilt in (text, text.replace("\n", "\r\n"), f"Warning: persistence mode is disabled\n\n{text}\n\n"):
        if spoilt.startswith("Warning") and wanted["kind"] == "L":
            continue
        seen = KINDS[str(wanted["kind"])](spoilt)
        assert sorted(seen, key=str) == sorted(wanted["rows"], key=str)


def everything(text: str) -> tuple[object, ...]:
    """All that can read output of nvidia-smi, on one text."""
    return (
        nvidia_smi.parse_listing(text),
        nvidia_smi.parse_gpu_instances(text),
        nvidia_smi.parse_compute_instances(text),
        nvidia_smi.parse_rows(text, nvidia_smi.QUERY_FIELDS, free="name"),
        nvidia_smi.parse_rows(text, nvidia_smi.APPS_FIELDS, free="process_name"),
        mig_tables.parse_profiles(text),
        mig_tables.parse_placements(text),
        nvidia_xml.parse_report(text),
        nvidia_table.parse_table(text),
        *(judge(verb, text, 0) for verb in (Verb.LOOK, Verb.CREATE, Verb.MODE)),
    )


@here
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_raises_in_any_parser(path):
    text = path.read_text("utf-8")
    for end in (len(text), len(text) // 2, len(text) // 3):
        assert all(found is not None for found in everything(text[:end]))


def own_kind(name: str) -> str:
    for end in ("lgip", "lgipp", "lgi", "lci"):
        if f".{end}." in name or f".{end}-" in name:
            return end
    return "L" if ".L." in name or ".L-" in name else "other"


@here
def test_no_table_is_taken_for_another():
    readers = {
        "lgi": nvidia_smi.parse_gpu_instances,
        "lci": nvidia_smi.parse_compute_instances,
        "lgip": mig_tables.parse_profiles,
        "lgipp": mig_tables.parse_placements,
    }
    compared = 0
    for path in FILES:
        for kind, read in readers.items():
            if own_kind(path.name) != kind:
                found = read(path.read_text("utf-8"))
                assert isinstance(found, Unknown) or found.value == (), (path.name, kind)
                compared += 1
        if "table" not in path.name or "no-mig-devices" in path.name:
            assert isinstance(nvidia_table.parse_table(path.read_text("utf-8")), Unknown), path.name
        if path.suffix != ".xml":
            assert isinstance(nvidia_xml.parse_report(path.read_text("utf-8")), Unknown), path.name
    assert compared > 300


# file: device, GPU instance, compute instance, MiB of each slice; pid, name, MiB, GPU instance of each process
TABLE_ROWS = {
    "a30-535.183.01.table.txt": ([(0, 2, 0, 11968), (1, 3, 0, 5952), (2, 4, 0, 5952)], []),
    "h100-mig-590.48.01.load.table.txt": (
        [(0, 2, 0, 40448), (1, 3, 0, 20096), (2, 9, 0, 9984), (3, 10, 0, 9984)],
        [
            (21180, "/root/tools/memhog", 2296, 2),
            (21181, "/root/tools/memhog", 1272, 2),
            (21198, "./gpu_burn", 7484, 2),
        ],
    ),
    "h100-mig-mixed-580.173.02.table.txt": (
        [(0, 1, 0, 40448), (1, 11, 0, 9984), (2, 13, 0, 9984)],
        [(23804, "/tmp/loadgen", 4188, 1), (23806, "/tmp/loadgen", 4188, 1), (23808, "/tmp/ghost", 4188, 1)],
    ),
    "h200-mig-580.173.02.table.txt": (
        [(0, 11, 0, 16384), (1, 13, 0, 16384)],
        [(12648, "/tmp/prickle-gpu-spin", 602, 11)],
    ),
    "l40s-595.80.load.table.txt": ([], [(20037, "ffmpeg", 538, None), (20038, "ffmpeg", 681, None)]),
    "h100-590.48.01.idle.table.txt": ([], []),
}
# file: bus id, name, MiB in all and used, degrees, percent, MIG mode
TABLE_GPUS = {
    "a30-535.183.01.table.txt": (
        "00000000:0B:00.0",
        "NVIDIA A30",
        "24576MiB",
        "50MiB",
        "47",
        "N/A",
        "Enabled",
    ),
    "h100-mig-590.48.01.load.table.txt": (
        "00000000:00:09.0",
        "NVIDIA H100 80GB HBM3",
        "81559MiB",
        "11125MiB",
        "52",
        "N/A",
        "Enabled",
    ),
    "l40s-595.80.load.table.txt": (
        "00000000:01:00.0",
        "NVIDIA L40S",
        "46068MiB",
        "1235MiB",
        "54",
        "9%",
        "N/A",
    ),
    "h100-590.48.01.idle.table.txt": (
        "00000000:00:09.0",
        "NVIDIA H100 80GB HBM3",
        "81559MiB",
        "0MiB",
        "41",
        "0%",
        "Disabled",
    ),
}


@here
@pytest.mark.parametrize("name", TABLE_ROWS)
def test_tables_by_hand(name):
    (gpu,) = known(nvidia_table.parse_table(text_of(name))).gpus
    slices, processes = TABLE_ROWS[name]
    assert [
        (one.device, one.gi.value, one.ci.value, one.memory_mib.value) for one in known(gpu.slices)
    ] == slices
    assert [(one.pid, one.name, one.memory_mib.value, one.gi) for one in known(gpu.processes)] == processes
    if name in TABLE_GPUS:
        assert TABLE_GPUS[name] == (
            gpu.bus_id,
            gpu.name,
            gpu.memory_total,
            gpu.memory_used,
            gpu.temperature,
            gpu.utilization,
            gpu.mig_current,
        )


# file: driver, and of each GPU its bus id, UUID, MiB in all, mode, (device, GPU instance, MiB) of each slice
REPORTS = {
    "a100-sxm4-40gb-510.47.03.q-x.trimmed.xml": (
        "510.47.03",
        [("00000000:00:04.0", "GPU-27b94a00-ed54-5c24-b1fd-1054085de32a", "40960 MiB", "Enabled",
          [(0, 1, 19968), (1, 2, 19968)])],
    ),
    "h100-575.57.08.FRAGMENT.xml": (
        "575.57.08",
        [("00000000:00:09.0", "", "81920 MiB", "Enabled", [(0, 1, 40448)])],
    ),
    "nonmig-and-mig-mixed-535.129.03.FRAGMENT.xml": (
        "535.129.03",
        [
            ("00000000:15:00.0", "GPU-f124aa59-d406-d45b-9481-8fcd694e6c9e", "", "N/A", []),
            ("00000000:10:00.0", "GPU-feba7e40-d724-01ff-b00f-3a439a28a6c7", "", "Enabled",
             [(0, 1, None), (1, 5, None), (2, 13, None)]),
        ],
    ),
    "a100-mig-container.insufficient-permissions.FRAGMENT.xml": (
        None,
        [("", "", "Insufficient Permissions", "Enabled", [(0, 10, 4864)])],
    ),
}  # fmt: skip


@here
@pytest.mark.parametrize("name", REPORTS)
def test_reports_by_hand(name):
    report = known(nvidia_xml.parse_report(text_of(name)))
    driver, gpus = REPORTS[name]
    assert (report.driver.value if isinstance(report.driver, Known) else None) == driver
    assert [
        (
            gpu.bus_id,
            gpu.uuid,
            gpu.memory_total,
            gpu.mig_current,
            [
                (
                    one.device,
                    one.gi.value,
                    one.memory_mib.value if isinstance(one.memory_mib, Known) else None,
                )
                for one in known(gpu.slices)
            ],
        )
        for gpu in report.gpus
    ] == gpus


QUERY = (
    "index",
    "uuid",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "temperature.gpu",
    "power.draw",
)
MODES = ("name", "mig.mode.current", "mig.mode.pending")
DEVICES = ("pci.device_id", "mig.mode.current", "mig.mode.pending")
H100_UUID = "GPU-0d0831da-0c98-2717-6446-8acd91d39b65"
# file, fields that were asked for, the one that may hold a comma, some values of the first row, number of rows
CSV = [
    ("h100-mig-580.173.02.query-gpu.csv", QUERY, "name",
     {"index": "0", "utilization.gpu": "[N/A]", "memory.used": "4225", "temperature.gpu": "58"}, 1),
    ("h100-default-580.173.02.query-gpu.csv", QUERY, "name", {"uuid": H100_UUID, "memory.total": "81559"}, 1),
    ("h100-mig-590.48.01.load.query-gpu-subset.csv", QUERY, "name",
     {"mig.mode.current": "Enabled", "memory.used": "11125 MiB", "utilization.gpu": "[N/A]",
      "driver_version": "590.48.01", "gpu_recovery_action": "None"}, 1),
    ("l40s-595.80.load.query-gpu-subset.csv", QUERY, "name", {"mig.mode.current": "[N/A]"}, 1),
    ("a100-query-pending.csv", MODES, "name", {"mig.mode.current": "Disabled", "mig.mode.pending": "Enabled"}, 8),
    ("a100-query-mig-mode-with-header.csv", MODES, "name",
     {"pci.bus_id": "00000000:36:00.0", "mig.mode.current": "Enabled"}, 1),
    ("rtxpro6000-server.query-device-id-mig-mode.csv", DEVICES, "", {"pci.device_id": "0x2BB510DE"}, 8),
    ("h100-mig-580.173.02.query-compute-apps.csv", nvidia_smi.APPS_FIELDS, "process_name",
     {"gpu_uuid": H100_UUID, "pid": "10385", "process_name": "/tmp/loadgen", "used_memory": "4188"}, 1),
    ("h100-mig-mixed-580.173.02.query-compute-apps.csv", nvidia_smi.APPS_FIELDS, "process_name",
     {"pid": "23808", "process_name": "/tmp/ghost"}, 3),
    ("l40s-595.80.load.query-compute-apps.csv", nvidia_smi.APPS_FIELDS, "process_name",
     {"pid": "20037", "process_name": "ffmpeg", "used_memory": "538 MiB"}, 2),
    ("mig-container.query-compute-apps.csv", nvidia_smi.APPS_FIELDS, "process_name",
     {"pid": "[Insufficient Permissions]"}, 1),
    ("big/h200-590.48.01.load.query-gpu-all.csv", QUERY, "name",
     {"name": "NVIDIA H200", "pci.device_id": "0x233510DE", "pci.bus_id": "00000000:83:00.0"}, 1),
    ("big/l40s-595.80.load.query-gpu-all.csv", QUERY, "name", {"driver_version": "595.80", "name": "NVIDIA L40S"}, 1),
]  # fmt: skip


@here
@pytest.mark.parametrize(("name", "fields", "free", "first", "count"), CSV, ids=[row[0] for row in CSV])
def test_queries_by_hand(name, fields, free, first, count):
    rows = nvidia_smi.parse_rows(text_of(name), fields, free=free)
    assert len(rows) == count
    assert any(first.items() <= row.items() for row in rows), rows[0]


# A mutilated output gives fewer rows or Unknown, never a row that the whole one does not have.

OWN = {
    **{f"lgi/{path.name}": "lgi" for path in (TABLES / "lgi").iterdir()},
    **{f"lci/{path.name}": "lci" for path in (TABLES / "lci").iterdir()},
}
MIG_OFFERS = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.5gb          19     4/7        4.75       No     14     0     0   |
|                                                               1     0     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.5gb+me       20     1/1        4.75       No     14     1     0   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
|   1  MIG 3g.20gb          9     1/2        19.50      No     42     2     0   |
|                                                               3     0     0   |
+-------------------------------------------------------------------------------+
"""
MIG_PLACES = "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\nGPU  1 Profile ID  9 Placements: {0,4}:4\n"
WHOLE_TABLE = """\
Tue Dec  1 09:00:43 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A100 80GB PCIe          On  |   00000000:17:00.0 Off |                   On |
| N/A   44C    P0             73W /  300W |    1313MiB /  81920MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA L4                      On  |   00000000:65:00.0 Off |                    0 |
| 34%   ERR!   P8             16W /   72W |       0MiB /  23034MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    1   0   0  |            1251MiB / 40192MiB    | 14      0 |  3   0    2    0    0 |
|                  |               2MiB / 65535MiB    |           |                       |
+------------------+                                  +-----------+-----------------------+
|  0    1   1   1  |                                  | 28      0 |  3   0    2    0    0 |
|                  |                                  |           |                       |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0    1    0             7120      C   python3 -m engine                      1214MiB |
|    1  N/A  N/A             7121    C+G   ./viewer                                   N/A |
+-----------------------------------------------------------------------------------------+
"""


def test_memory_of_a_shared_instance_is_told_once_and_belongs_to_both():
    first, second = known(nvidia_table.parse_table(WHOLE_TABLE)).gpus
    assert [
        (one.device, one.gi.value, one.ci.value, one.memory_mib.value) for one in known(first.slices)
    ] == [
        (0, 1, 0, 40192),
        (1, 1, 1, 40192),
    ]
    assert known(first.processes) == (
        GpuProcess(pid=7120, name="python3 -m engine", memory_mib=Known(1214), gi=1, ci=0),
    )
    assert known(second.slices) == ()
    assert known(second.processes)[0].gi is None
    assert isinstance(known(second.processes)[0].memory_mib, Unknown)
    assert isinstance(nvidia_smi.parse_number(second.temperature), Unknown)


def test_the_table_joins_slices_where_there_is_no_xml():
    uuid, slices = "GPU-5d1b3f0e-0000-4000-8000-00000000000a", ("MIG-a1", "MIG-b2")
    names = ("1c.3g.40gb", "2c.3g.40gb")
    listed = f"GPU 0: NVIDIA A100 80GB PCIe (UUID: {uuid})\n" + "\n".join(
        f"  MIG {name}  Device  {at}: (UUID: {slices[at]})" for at, name in enumerate(names)
    )
    query = f"0, {uuid}, NVIDIA A100 80GB PCIe, 00000000:17:00.0, 550.54.14, 81920, 1313, 44, [N/A], Enabled, Enabled"
    instances = "|   0  MIG 3g.40gb           9        1          0:4     |\n+------+"
    told = {"list": listed, "query": query, "table": WHOLE_TABLE, "lgi": instances}
    sections = healthy() | {name: section(name, text) for name, text in told.items()}
    sections["report"] = section("report", "Unable to determine anything: Unknown Error", status=255)
    (gpu,) = known(facts(sections).gpus)
    assert [
        (one.uuid, one.profile, one.gi.value, one.ci.value, one.start.value)
        for one in known(gpu.mig.instances)
    ] == [("MIG-a1", "1c.3g.40gb", 1, 0, 0), ("MIG-b2", "2c.3g.40gb", 1, 1, 0)]
    assert [(one.pid, one.gi) for one in known(gpu.processes)] == [(7120, 1)]
    del sections["table"]
    (gpu,) = known(facts(sections).gpus)
    assert isinstance(known(gpu.mig.instances)[0].gi, Unknown)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("|  0    1   1   1  |", "slices"),
        ("|    0    1    0             7120      C   python3 -m engine", "processes"),
    ],
)
def test_a_row_that_is_not_understood_is_no_absence(line, part):
    (gpu, _) = known(nvidia_table.parse_table(WHOLE_TABLE.replace(line, line.replace(" 1 ", " ? ", 1)))).gpus
    assert isinstance(getattr(gpu, part), Unknown)
    other = "processes" if part == "slices" else "slices"
    assert isinstance(getattr(gpu, other), Known)


@pytest.mark.parametrize(
    ("read", "text", "row"),
    [
        (nvidia_smi.parse_gpu_instances, recorded("lgi", "h100-580-unsorted"), "MIG"),
        (nvidia_smi.parse_compute_instances, recorded("lci", "h100-580-starred"), "MIG"),
        (mig_tables.parse_profiles, MIG_OFFERS, "4/7"),
        (mig_tables.parse_placements, MIG_PLACES, "Placements"),
    ],
)
def test_a_row_with_a_word_in_it_is_not_passed_over(read, text, row):
    assert isinstance(read(text), Known)
    spoilt = read(text.replace(row, "[GPU requires reset]", 1))
    assert isinstance(spoilt, Unknown)
    assert "not understood" in spoilt.reason


def test_words_for_numbers_in_a_profile():
    text = MIG_OFFERS.replace("19.50 ", "[N/A] ").replace("42     2", "[N/A]  N/A")
    last = known(mig_tables.parse_profiles(text))[-1]
    assert (last.gib, last.engines.sm, last.engines.decoders, last.engines.copy) == (None, None, None, 3)


def rows_of(fact: object) -> list[Any]:
    return list(fact.value) if isinstance(fact, Known) else []


def table_rows(text: str) -> list[object]:
    fact = nvidia_table.parse_table(text)
    if isinstance(fact, Unknown):
        return []
    slices = [(gpu.bus_id, one) for gpu in fact.value.gpus for one in rows_of(gpu.slices)]
    return [
        *((one.gi, one.ci, one.device) for _, one in slices),
        *(p.pid for g in fact.value.gpus for p in rows_of(g.processes)),
    ]


READERS: Mapping[str, Callable[[str], list[Any]]] = {
    "L": lambda text: [row for gpu in nvidia_smi.parse_listing(text).gpus for row in (gpu.uuid, *gpu.slices)],
    "lgi": lambda text: rows_of(nvidia_smi.parse_gpu_instances(text)),
    "lci": lambda text: rows_of(nvidia_smi.parse_compute_instances(text)),
    "lgip": lambda text: [
        (row.gpu, row.name, row.id, row.free, row.total, row.gib, row.p2p, row.engines.sm)
        for row in rows_of(mig_tables.parse_profiles(text))
    ],
    "lgipp": lambda text: rows_of(mig_tables.parse_placements(text)),
    "table": table_rows,
}
WHOLE = [
    ("L", recorded("list", "h100-580-slices")),
    ("L", recorded("list", "a100-450-old-names")),
    ("lgip", MIG_OFFERS),
    ("lgipp", MIG_PLACES),
    ("table", WHOLE_TABLE),
    *((kind, recorded(*name.split("/"))) for name, kind in OWN.items()),
    *((str(entry["kind"]), text_of(name)) for name, entry in ROWS.items()),
]


@st.composite
def mutilated(draw):
    """An output whose lines were dropped, cut short or shuffled, and what kind it is."""
    kind, text = draw(st.sampled_from(WHOLE))
    lines = text.splitlines()
    kept = draw(st.lists(st.sampled_from(range(len(lines))), unique=True, max_size=len(lines)))
    if draw(st.booleans()):
        kept = sorted(kept)
    found = []
    for at in kept:
        # Placements end with a number: one of two digits that lost its second cannot be told from a whole one.
        least = 1 if kind == "lgipp" and len(lines[at].split(":")[-1].strip()) > 1 else 0
        cut = draw(st.integers(0, len(lines[at]))) if draw(st.booleans()) and not least else len(lines[at])
        found.append(lines[at][:cut])
    return kind, text, "\n".join(found)


@given(mutilated())
def test_what_was_mutilated_invents_no_row(case):
    kind, whole, rest = case
    have = READERS[kind](whole)
    assert all(row in have for row in READERS[kind](rest))
    assert judge(Verb.LOOK, rest, 0).id in IDS
    assert len(everything(rest)) > 8
