"""Files of layouts, ours and mig-parted's."""

from __future__ import annotations

import pytest
import yaml

from gpufleet import yaml_source
from gpufleet.errors import DocumentError, UsageError
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.document import layout_of, parted
from gpufleet.mig.layout import parse
from gpufleet.mig.plan import LayoutChange, plan

OWN = """\
version: 1
layouts:
  chat: 3g.40gb,2x1g.10gb
  embed: {board: H100, slices: '3g.40gb:4'}
"""
PARTED = """\
version: v1
mig-configs:
  all-small:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  two-kinds:
    - devices: [0]
      mig-enabled: true
      mig-devices:
        "3g.40gb": 1
        "1g.10gb": 2
    - devices: [1, 2]
      mig-enabled: false
  filtered:
    - device-filter: 0x233010DE
      devices: all
      mig-enabled: true
"""


def source(tmp_path, text):
    path = tmp_path / "layouts.yaml"
    path.write_text(text)
    return yaml_source.read(path)


def test_our_own(tmp_path):
    file = source(tmp_path, OWN)
    assert layout_of(file, "chat", 3).text == "3g.40gb,2x1g.10gb"
    assert layout_of(file, "embed", 0).board == "H100"


def test_mig_parteds(tmp_path):
    file = source(tmp_path, PARTED)
    board = BOARDS["H100-80GB"]
    for name, index, count in (("all-small", 5, 7), ("two-kinds", 0, 3)):
        change = plan(board, (), parse(layout_of(file, name, index).text, board))
        assert isinstance(change, LayoutChange)
        assert len(change.create) == count


@pytest.mark.parametrize(
    ("text", "name", "index", "said", "line"),
    [
        (PARTED.replace("[0]", "7"), "two-kinds", 0, "write a list: [7]", ":8"),
        (PARTED.replace("mig-devices: {", "mig-device: {"), "all-small", 0, "mig-devices", ":6"),
        (PARTED.replace("7}", "many}"), "all-small", 0, "a whole number", ":6"),
        (OWN.replace("slices", "slice"), "embed", 0, "slices", ":4"),
        (OWN.replace("version: 1", "version: 2"), "chat", 0, "1", ":1"),
    ],
)
def test_mistakes_of_a_file_name_their_line(tmp_path, text, name, index, said, line):
    with pytest.raises(DocumentError) as caught:
        layout_of(source(tmp_path, text), name, index)
    told = " ".join(
        [caught.value.summary, caught.value.where, *caught.value.hints, *map(str, caught.value.rows)]
    )
    assert said in told
    assert f"layouts.yaml{line}" in told


@pytest.mark.parametrize(
    ("name", "index", "said"),
    [
        ("two-kind", 0, "did you mean `two-kinds`"),
        ("two-kinds", 1, "turns MIG off"),
        ("two-kinds", 7, "no entry for GPU 7"),
        ("filtered", 0, "device-filter"),
    ],
)
def test_layouts_that_are_not_there(tmp_path, name, index, said):
    with pytest.raises(UsageError) as caught:
        layout_of(source(tmp_path, PARTED), name, index)
    assert said in " ".join([caught.value.summary, *caught.value.hints])


def test_what_goes_out_comes_in_again(tmp_path):
    seen = {
        0: (True, ["3g.40gb", "1g.10gb", "1g.10gb"]),
        1: (False, []),
        2: (True, ["1g.10gb", "3g.40gb", "1g.10gb"]),
    }
    document = parted(seen)
    entries = document["mig-configs"]["current"]  # type: ignore[index]  # made of plain values
    assert [one["devices"] for one in entries] == [[0, 2], [1]]
    file = source(tmp_path, yaml.safe_dump(document))
    board = BOARDS["H100-80GB"]
    wanted = parse(layout_of(file, "current", 2).text, board)
    assert sorted(one.profile.name for one in wanted) == ["1g.10gb", "1g.10gb", "3g.40gb"]
