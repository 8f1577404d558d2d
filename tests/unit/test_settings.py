"""Global options are found anywhere on the line, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.cli.settings import FLAGS, VALUED, split
from gpufleet.errors import UsageError


def test_before_and_after_the_command_are_the_same() -> None:
    before, words_before = split(["-o", "json", "-i", "a.yaml", "hosts", "facts", "all"])
    after, words_after = split(["hosts", "facts", "all", "--output=json", "--inventory", "a.yaml"])
    assert words_before == words_after == ["hosts", "facts", "all"]
    assert before == after
    assert before.inventory == Path("a.yaml")


def test_clustered_flags_and_double_dash() -> None:
    settings, words = split(["hosts", "run", "all", "-yq", "--", "docker", "ps", "-q"])
    assert settings.yes
    assert settings.quiet
    assert words == ["hosts", "run", "all", "--", "docker", "ps", "-q"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-o", "xml"], "--output"),
        (["--forks", "0"], "--forks"),
        (["--forks", "many"], "--forks"),
        (["hosts", "--inventory"], "--inventory"),
        (["-i", "--", "x"], "-i"),
    ],
)
def test_wrong_values_name_the_option(words: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        split(words)


def test_environment_names_inventory_and_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUFLEET_INVENTORY", str(tmp_path / "env.yaml"))
    monkeypatch.setenv("GPUFLEET_STATE", str(tmp_path / "state"))
    assert split([])[0].inventory == tmp_path / "env.yaml"
    assert split(["-i", "x.yaml"])[0].inventory == Path("x.yaml")
    assert split([])[0].state_dir == tmp_path / "state"
    monkeypatch.delenv("GPUFLEET_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert split([])[0].state_dir == tmp_path / "xdg" / "gpufleet"


@given(st.lists(st.text(max_size=8).filter(lambda word: word.partition("=")[0] not in {*VALUED, *FLAGS})))
def test_other_words_pass_untouched(words: list[str]) -> None:
    cleaned = [word for word in words if not (word[:1] == "-" and len(word) > 1 and word != "--")]
    assert split(cleaned)[1] == cleaned
