"""Tables of profiles and placements as drivers of several generations print them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes.mig_tables import offers, parse_placements, parse_profiles
from gpufleet.hosts.probes.script import Section

CORPUS = Path(__file__).parents[4] / "shared" / "fixtures" / "mig"

NARROW = """\
+--------------------------------------------------------------------------+
| GPU instance profiles:                                                   |
| GPU   Name          ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                           Free/Total   GiB              CE    JPEG  OFA  |
|==========================================================================|
|   0  MIG 1g.5gb     19     0/7        4.75       No     14     0     0   |
|                                                          1     0     0   |
+--------------------------------------------------------------------------+
|   0  MIG 7g.40gb     0     1/1        39.50      No     98     5     0   |
|                                                          7     1     1   |
+--------------------------------------------------------------------------+
"""
WIDE = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   3  MIG 1g.24gb-me      67     4/4        23.62      No     46     0     0   |
|                                                               1     0     0   |
+-------------------------------------------------------------------------------+
"""
PLACES = """\
GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID  9 Placements: {4,0}:4
GPU  0 Profile ID  0 Placement : {0}:8
""".replace("8\n", "8 \n")  # R450 leaves a blank behind the line


def test_profiles_of_two_widths():
    found = parse_profiles(NARROW)
    assert isinstance(found, Known)
    assert [(one.gpu, one.name, one.id, one.free, one.total, one.gib) for one in found.value] == [
        (0, "1g.5gb", 19, 0, 7, 4.75),
        (0, "7g.40gb", 0, 1, 1, 39.5),
    ]
    wide = parse_profiles(WIDE)
    assert isinstance(wide, Known)
    assert [(one.gpu, one.name) for one in wide.value] == [(3, "1g.24gb-me")]


def test_placements_in_rising_order():
    found = parse_placements(PLACES)
    assert isinstance(found, Known)
    assert [(one.id, one.starts, one.size) for one in found.value] == [
        (19, (0, 1, 2, 3, 4, 5, 6), 1),
        (9, (0, 4), 4),
        (0, (0,), 8),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "printed no profiles"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "couldn't communicate",
        ),
        (WIDE + "Failed to display GPU instance profiles: Unknown Error", "Unknown Error"),
        ("Failed to display GPU instance profiles: Insufficient Permissions", "Insufficient Permissions"),
    ],
)
def test_what_is_no_table_is_unknown(text, reason):
    found = parse_profiles(text)
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_no_gpu_that_can_be_cut_is_an_answer():
    assert parse_profiles("No MIG-supported devices found.\n") == Known(())


def test_both_tables_or_none():
    table, places = Section(name="lgip", text=NARROW, status=0), Section(name="lgipp", text=PLACES, status=0)
    both = offers({"lgip": table, "lgipp": places})
    assert isinstance(both, Known)
    assert [one.row.name for one in both.value[0]] == ["1g.5gb", "7g.40gb"]
    for sections in (
        {"lgip": table},
        {"lgip": table, "lgipp": Section(name="lgipp", text="", status=124)},
        {"lgip": Section(name="lgip", text="", status=127), "lgipp": places},
        {"lgip": table, "lgipp": Section(name="lgipp", text="Unknown Error", status=255)},
    ):
        assert isinstance(offers(sections), Unknown)


@given(st.text(max_size=300))
def test_no_text_breaks_the_parsers(text):
    for parse in (parse_profiles, parse_placements):
        assert isinstance(parse(text), Known | Unknown)
        assert isinstance(parse(NARROW + text + PLACES), Known | Unknown)


def test_the_captured_tables():
    path = CORPUS / "expected.json"
    if not path.exists():
        pytest.skip("no captured outputs beside this checkout")
    checked = 0
    for name, expected in json.loads(path.read_text(encoding="utf-8")).items():
        text = (CORPUS / name).read_text(encoding="utf-8", errors="replace")
        if expected["kind"] == "lgip":
            found = parse_profiles(text)
            assert isinstance(found, Known), name
            assert [(one.gpu, one.name, one.id, one.free, one.total, one.gib) for one in found.value] == [
                tuple(row[key] for key in ("gpu", "name", "id", "free", "total", "gib"))
                for row in expected["rows"]
            ], name
            checked += 1
        elif expected["kind"] == "lgipp":
            places = parse_placements(text)
            assert isinstance(places, Known), name
            assert [(one.gpu, one.id, list(one.starts), one.size) for one in places.value] == [
                (row["gpu"], row["id"], sorted(row["starts"]), row["size"]) for row in expected["rows"]
            ], name
            checked += 1
    assert checked >= 19
