"""A leading `~` is a home directory, or stays as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.paths import expanded


def test_the_own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/key") == tmp_path / "key"
    assert expanded(Path("~/key")) == tmp_path / "key"
    assert expanded("/etc/key") == Path("/etc/key")


@given(st.text(alphabet=st.characters(), max_size=20))
@example("~0")
@example("~\0")
@example("~\ud800")
def test_no_text_raises(text: str):
    expanded(text)
    expanded(f"~{text}")
