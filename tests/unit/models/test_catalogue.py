"""The shipped catalogue and the files of a team."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpufleet.errors import DocumentError, UsageError
from gpufleet.inventory.load import load as load_inventory
from gpufleet.models.document import described
from gpufleet.models.load import SHIPPED, catalogue, config_file, named, shipped
from gpufleet.models.model import Cited, Modality

HOSTS = "version: 1\nhosts:\n  gpu-01: {address: 192.0.2.1}\n"


def team(folder: Path, **files: str) -> Path:
    (folder / "inventory.yaml").write_text(HOSTS)
    (folder / "models").mkdir()
    for name, text in files.items():
        (folder / "models" / f"{name}.yaml").write_text(text)
    return folder / "inventory.yaml"


def test_there_are_models_of_every_modality() -> None:
    counts = Counter(entry.modality for entry in shipped().values())
    assert len(shipped()) >= 25
    assert all(counts[modality] >= 4 for modality in Modality)


def test_every_figure_has_a_source_and_every_config_is_understood() -> None:
    for path in SHIPPED.glob("*.yaml"):
        entry = shipped()[path.stem]
        for figure in (
            entry.since,
            entry.parameters,
            entry.memory_gib,
            entry.capability,
            entry.quantization,
            entry.config,
        ):
            assert isinstance(figure, Cited)
            assert bool(figure.source) == (figure.value is not None), entry.name
        if entry.config.value is not None:
            assert described(entry) is not None, entry.name


def test_a_team_adds_models_and_replaces_shipped_ones(tmp_path: Path) -> None:
    path = team(
        tmp_path,
        ours="hub: /models/ours\nmodality: llm\nmemory_gib: {value: 20, source: measured by us}\n",
        mine="name: qwen3-8b\nhub: our/qwen3-8b\nmodality: llm\n",
    )
    found = catalogue(load_inventory(path))
    assert found["ours"].memory_gib == Cited(20.0, "measured by us")
    assert found["qwen3-8b"].hub == "our/qwen3-8b"
    assert set(shipped()) < set(found)
    assert named("our/qwen3-8b", found).name == "qwen3-8b"


def test_every_mistake_is_shown_with_its_line(tmp_path: Path) -> None:
    path = team(
        tmp_path,
        a="hub: x/y\nmodality: film\nmemory: 3\n",
        b="hub: --x\nmodality: llm\ncompute_capability: {value: '9', source: s}\nargs: ['--a b']\n",
        c="modality: llm\nhub: x/y\nconfig: {source: s, values: {num_hidden_layers: -1}}\nparameters: {value: 3}\n",
        d="modality: llm\nhub: x/y\nname: 'no name'\nconfig: {source: s, values: {head_dim: no}}\n",
    )
    with pytest.raises(DocumentError) as caught:
        catalogue(load_inventory(path))
    places = [row.where.rpartition("/")[2] for row in caught.value.rows]
    assert places == [
        "a.yaml:2",
        "a.yaml:3",
        "b.yaml:1",
        "b.yaml:3",
        "b.yaml:4",
        "c.yaml:4",
        "d.yaml:3",
        "d.yaml:4",
    ]


def test_a_name_nobody_knows_has_a_neighbour() -> None:
    with pytest.raises(UsageError) as caught:
        named("qwen3-8", shipped())
    assert "qwen3-8b" in caught.value.hints[0]


@pytest.mark.parametrize("text", ["", "[1", "[]", '{"num_hidden_layers": "x"}', "[" * 100_000])
def test_a_file_that_is_no_config_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        config_file(path)
    assert str(path) in str(caught.value)
    with pytest.raises(DocumentError, match="cannot be read"):
        config_file(tmp_path / "none.json")
