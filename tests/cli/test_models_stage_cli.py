"""`gpufleet models stage` as a process, on this machine (`connection: local`), from HTTP servers like the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.kit import weight_sources

TOKEN = "hf_averysecrettokenindeed"
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 300, "model.bin": b"old"}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text(
        "version: 1\nhosts:\n  here: {address: 127.0.0.1, connection: local}\n"
    )
    (tmp_path / "home").mkdir()
    return tmp_path


def stage(desk: Path, *words: str, status: int = 0) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET")}
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "gpufleet",
            "-o",
            "json",
            "--no-input",
            "--yes",
            "models",
            "stage",
            "org/name",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=desk,
        env={
            **kept,
            "HOME": str(desk / "home"),
            "GPUFLEET_STATE": str(desk / "state"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HF_TOKEN": TOKEN,
        },
    )
    assert ended.returncode == status, ended
    assert TOKEN not in ended.stdout + ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_weights_are_staged_once_checked_and_journalled_without_the_token(desk: Path):
    with weight_sources.hub(FILES, token=TOKEN) as (hub, storage):
        words = ("--endpoint", hub.url, "--token", "${env:HF_TOKEN}", "--store", str(desk / "models"))
        shown = stage(desk, *words, "--check", status=3)
        assert (shown["outcome"], shown["hosts"][0]["status"]) == ("changes", "stages")
        done = stage(desk, *words)
        assert (done["outcome"], done["hosts"][0]["status"], done["files"]) == ("committed", "done", 2)
        final = desk / "models" / f"org--name@{weight_sources.COMMIT[:16]}"
        assert done["path"] == str(final)
        assert (final / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert not (final / "model.bin").exists()
        assert stage(desk, *words)["outcome"] == "no_change"
        assert storage.reads("model.safetensors") == 1
        (final / "config.json").write_bytes(b"[]")
        assert stage(desk, *words, "--verify")["outcome"] == "committed"
        assert (final / "config.json").read_bytes() == b"{}"
    journals = [path.read_text() for path in (desk / "state").rglob("*.jsonl")]
    assert journals
    assert not any(TOKEN in text for text in journals)


def test_a_refusal_is_found_before_anything_and_says_which(desk: Path):
    with weight_sources.hub(FILES, token="hf_another") as (hub, _):
        refused = stage(desk, "--endpoint", hub.url, status=8)
        assert refused["error"]["code"] == "weights-unauthorized"
        refused = stage(desk, "--endpoint", hub.url, "--token", "${env:HF_TOKEN}", status=8)
        assert (refused["error"]["code"], "expired" in refused["error"]["hints"][0]) == (
            "weights-unauthorized",
            True,
        )
    with weight_sources.hub(FILES, token=TOKEN, gated=True) as (hub, _):
        words = ("--endpoint", hub.url, "--token", "${env:HF_TOKEN}")
        refused = stage(desk, *words, status=8)
        assert (refused["error"]["code"], "ask for access" in refused["error"]["hints"][0]) == (
            "weights-forbidden",
            True,
        )
        refused = stage(desk, *words, "--revision", "nope", status=8)
        assert (refused["error"]["code"], "no revision nope" in refused["error"]["message"]) == (
            "weights-missing",
            True,
        )
    refused = stage(desk, "--endpoint", hub.url, status=8)
    assert refused["error"]["code"] == "weights-unreachable"
    assert not (desk / "home" / ".gpufleet" / "models").exists()


def test_a_copy_that_fails_leaves_nothing_behind(desk: Path):
    with weight_sources.hub(FILES) as (hub, storage):
        storage.files["model.safetensors"] = b"x" * len(FILES["model.safetensors"])
        failed = stage(desk, "--endpoint", hub.url, status=9)
        assert (failed["outcome"], failed["hosts"][0]["status"]) == ("rolled_back", "undone")
        assert "SHA-256" in failed["hosts"][0]["reason"]
        assert not list((desk / "home" / ".gpufleet" / "models").iterdir())


def test_a_copy_that_stands_still_is_ended_when_it_was_asked_for(desk: Path):
    with weight_sources.hub(FILES) as (hub, storage):
        storage.held["model.safetensors"] = threading.Event()
        failed = stage(desk, "--endpoint", hub.url, "--stall", "1", status=9)
        storage.held["model.safetensors"].set()
    assert "no byte for 1 s" in failed["hosts"][0]["reason"]
    assert not list((desk / "home" / ".gpufleet" / "models").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--token", "hf_inplaintextplaintext"), "secret in plain text"),
        (("--endpoint", "ftp://x"), "no address"),
        (("--store", "models"), "absolute path"),
        (("--access-key", "${env:A}"), "belong together"),
        (("--stall", "0"), "--stall"),
    ],
)
def test_what_makes_no_sense_is_told(desk: Path, words: tuple[str, ...], message: str):
    assert message in stage(desk, *words, status=2)["error"]["message"]
