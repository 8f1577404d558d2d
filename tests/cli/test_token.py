"""`gpufleet token` as a process: shown once, stored as a hash, listed, rotated, revoked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.tokens.model import digest, well_formed

ROOT = Path(__file__).parents[2]


def gpufleet(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpufleet", "--state-dir", str(state), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )


def test_the_life_of_a_token(tmp_path):
    made = gpufleet(
        tmp_path, "token", "create", "demo", "--model", "m", "--expires", "30d", "--tenant", "acme"
    )
    assert made.returncode == 0, made
    first = made.stdout.strip()
    assert well_formed(first)
    assert "shown once" in made.stderr
    content = (tmp_path / "tokens.db").read_bytes()
    assert first.encode() not in content
    assert digest(first.encode()) in content

    again = gpufleet(tmp_path, "token", "create", "demo")
    assert again.returncode == 4
    assert "token rotate demo" in again.stderr

    listed = json.loads(gpufleet(tmp_path, "token", "list", "-o", "json").stdout)
    assert listed["schema"] == 1
    (record,) = listed["tokens"]
    assert (record["name"], record["status"], record["tenant"]) == ("demo", "active", "acme")
    assert (record["models"], record["hint"]) == (["m"], first[-4:])
    assert first not in json.dumps(listed)

    turned = json.loads(gpufleet(tmp_path, "token", "rotate", "demo", "--grace", "0s", "-o", "json").stdout)
    assert well_formed(turned["token"])
    assert turned["token"] != first
    assert turned["record"]["models"] == ["m"]

    asked = gpufleet(tmp_path, "token", "revoke", "demo")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert gpufleet(tmp_path, "token", "revoke", "demo", "--yes").returncode == 0
    plain = gpufleet(tmp_path, "token", "list").stdout
    assert plain.count("revoked") == 2
    assert first not in plain


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "a b"), "NAME"),
        (("create", "x", "--expires", "soon"), "`soon` is not a duration"),
        (("create", "x", "--tenant", "no/slash"), "--tenant"),
        (("revoke", "nobody", "--yes"), "no tokens yet"),
        (("rotate", "nobody"), "no tokens yet"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(tmp_path, words, said):
    ended = gpufleet(tmp_path / "state", "token", *words)
    assert ended.returncode == 2, ended
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "state").exists()


def test_a_broken_store_is_named(tmp_path):
    (tmp_path / "tokens.db").write_bytes(b"rubbish " * 200)
    ended = gpufleet(tmp_path, "token", "list")
    assert ended.returncode == 4
    assert "tokens.db" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("words", [("list",), ("create", "ann"), ("revoke", "ann", "--yes")])
def test_a_state_directory_that_is_none_is_named(tmp_path, words):
    (tmp_path / "file").write_text("")
    done = gpufleet(tmp_path / "file", "token", *words, "-o", "json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["error"]["code"]) == (8, "preflight")
    assert answer["error"]["message"].startswith("the state directory cannot be used: ")
