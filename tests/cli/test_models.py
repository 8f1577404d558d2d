"""`gpufleet models`: the fields that are fixed, and one clear line for what cannot be answered."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.app import main

FIXED = {
    "verdict",
    "weights_gib",
    "kv_tokens",
    "kv_bytes_per_token",
    "available_kv_gib",
    "margin_gib",
    "hints",
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUFLEET_INVENTORY", raising=False)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main([*words, "-o", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_fit_of_a_config_with_a_measured_activation(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3-8B by vllm#10511: 79.22 GiB, 0.9, 1.79 and 1.26 GiB leave 53.29 for the cache."""
    found = answer(
        capsys, "models", "fit", "--config", "config.json", "--parameters", "8030261248", "--memory-gib", "79.22",
        "--gpu-memory-utilization", "0.9", "--vllm", "0.6.4", "--activation-gib", "1.26", "--non-torch-gib", "1.79",
    )  # fmt: skip
    assert set(found) > FIXED
    assert found["verdict"] == "fits"
    assert found["weights_gib"] == pytest.approx(14.96, rel=0.01)
    assert found["available_kv_gib"] == pytest.approx(53.29, abs=0.05)
    assert found["kv_bytes_per_token"] == 131072


def test_fit_of_a_catalogue_name_on_a_board_and_on_a_slice(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "models", "fit", "qwen3-8b", "--gpu", "A100-80GB")["verdict"] == "fits"
    found = answer(capsys, "models", "fit", "qwen3-8b", "--gpu", "H100-80GB", "--slice", "1g.10gb")
    assert (found["verdict"], found["memory_gib"]) == ("no", 9.75)
    assert found["hints"]


def test_what_is_unknown_is_null_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "models", "fit", "whisper-large-v3", "--memory-gib", "24")
    assert (found["verdict"], found["kv_tokens"]) == ("unknown", None)
    assert "weights_gib" in found
    assert found["unknown"]
    assert "GiB" in found["hints"][0]


def test_weights_are_read_from_a_directory(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = elsewhere / "weights"
    folder.mkdir()
    header = json.dumps(
        {"lm_head.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}}
    ).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    words = ("models", "fit", "--config", "config.json", "--weights", "weights", "--memory-gib", "8")
    assert answer(capsys, *words)["weights_gib"] == pytest.approx(0.002, abs=0.001)
    path.write_bytes(b"\x00" * 100)
    found = answer(capsys, *words, code=2)
    assert found["error"]["code"] == "document"
    assert "model.safetensors" in found["error"]["where"]


def test_list_can_be_limited(capsys: pytest.CaptureFixture[str]) -> None:
    everything = answer(capsys, "models", "list")["models"]
    assert len(everything) >= 25
    speech = answer(capsys, "models", "list", "--modality", "stt")["models"]
    assert {row["modality"] for row in speech} == {"stt"}
    small = answer(capsys, "models", "list", "--gpu", "RTX 4090")["models"]
    names = {row["name"] for row in small}
    assert "qwen3-0.6b" in names
    assert not names & {"deepseek-v3", "qwen3-32b", "minimax-m2.5"}
    assert all(row["verdict"] != "no" for row in small)


def test_show_has_the_source_of_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "models", "show", "gpt-oss-20b")
    assert found["parameters"]["source"]
    assert found["revision"] is None
    assert main(["models", "show", "gpt-oss-20b"]) == 0
    assert "model card" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fit",), "which model?"),
        (("fit", "qwen3-8b", "--config", "config.json", "--memory-gib", "1"), "which model?"),
        (("fit", "qwen3-8b"), "on which GPU?"),
        (("fit", "qwen3-9b", "--memory-gib", "1"), "did you mean `qwen3-8b`?"),
        (("fit", "qwen3-8b", "--gpu", "H101"), "is not known here"),
        (("fit", "qwen3-8b", "--gpu", "A100"), "several sizes"),
        (("fit", "qwen3-8b", "--slice", "big"), "no MIG profile"),
        (("fit", "qwen3-8b", "--gpu", "H100-80GB", "--vllm", "new"), "is no version"),
        (("fit", "--config", "none.json", "--memory-gib", "1"), "cannot be read"),
        (("list", "--modality", "film"), "one of: llm"),
        (("show", "nothing"), "no model `nothing`"),
    ],
)
def test_what_cannot_be_answered_is_one_clear_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_teams_models_are_found_beside_the_inventory(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "inventory.yaml").write_text("version: 1\nhosts:\n  gpu-01: {address: 192.0.2.1}\n")
    (elsewhere / "models").mkdir()
    (elsewhere / "models" / "ours.yaml").write_text("hub: /models/ours\nmodality: tts\n")
    names = {row["name"] for row in answer(capsys, "models", "list")["models"]}
    assert "ours" in names
    (elsewhere / "models" / "bad.yaml").write_text("hub: /models/bad\n")
    assert main(["models", "list"]) == 2
    assert f"models{os.sep}bad.yaml:1" in capsys.readouterr().err
