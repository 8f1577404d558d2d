"""The estimate held against what engines printed: weights within 1 percent, tokens within 2, and no model promised that did not start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.engine.boards import named
from gpufleet.engine.memory import Estimate, Measured, Setup, Verdict, estimate
from gpufleet.models.config import read
from gpufleet.models.document import described
from gpufleet.models.load import shipped
from gpufleet.models.model import Architecture

OWN = Path(__file__).with_name("points.yaml")
SHARED = Path(__file__).resolve().parents[4] / "shared" / "facts" / "vllm" / "memory_points.yaml"

GEMMA: dict[str, Any] = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}
GEMMA_PARAMETERS = 4_300_079_472
"""The model's config.json and its count on the hub; what it leaves out is the family's default."""

NOT_MET = {
    "gemma3-27b-awq-mi50-8k": "a fork of vLLM for MI50, and a build whose format is not known",
    "deepseek-v4.1-flash-tp2": "the shapes of this model are not known here",
    "deepseek-v4.1-flash-tp4": "the shapes of this model are not known here",
    "qwen25-7b-quant-4060": "which build it was is not said",
    "qwen3.8-27b-fp8-2x3090": "the longest request is not said, and this hybrid counts tokens by it",
    "qwen3.8-27b-nvfp4-2x5090": "the shapes of this model are not known here",
}
"""Points that cannot be checked, or are not met, and why. A point that is neither met nor named here fails."""


def points(path: Path) -> list[Any]:
    if not path.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{path.name} is not here"))]
    return [pytest.param(point, id=point["id"]) for point in yaml.safe_load(path.read_text())["points"]]


def model_of(point: dict[str, Any]) -> tuple[Architecture | None, int | None]:
    """From the catalogue when it knows the model, else from the lines that the point carries."""
    for entry in shipped().values():
        if entry.hub == point["model"]:
            return described(entry), entry.parameters.value
    alike = {
        "meta-llama/Meta-Llama-3-8B-Instruct": ("llama-3.1-8b-instruct", {"max_position_embeddings": 8192}),
        "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": ("qwen3-coder-480b-a35b", {}),
    }
    if point["model"] in alike:
        name, changes = alike[point["model"]]
        config = dict(shipped()[name].config.value or {})
        return read({**config, **changes}), shipped()[name].parameters.value
    if point["model"] == "google/gemma-3-4b-it":
        return read(GEMMA), GEMMA_PARAMETERS
    arch = point.get("arch")
    return (read(arch), arch.get("total_params")) if arch else (None, None)


def setup_of(point: dict[str, Any], parameters: int | None, measured: Measured) -> Setup:
    version = re.match(r"(\d+)\.(\d+)", str(point.get("vllm", "0.11.0")))
    board = named(str(point.get("gpu", "")))
    assert version is not None
    return Setup(
        memory_gib=point.get("gpu_total_gib") or (board.total_gib if board else 1000.0),
        share=point.get("gmu"),
        ranks=point["tp"],
        context=point.get("max_model_len"),
        kv_dtype=point.get("kv_dtype", "auto"),
        version=(int(version[1]), int(version[2])),
        capability=board.capability if board else None,
        parameters=parameters,
        measured=measured,
    )


def off(found: float, seen: float) -> float:
    return abs(found / seen - 1) * 100


def misses(point: dict[str, Any]) -> list[str]:
    """What of a point is not met; every figure that it carries is checked."""
    model, parameters = model_of(point)
    if model is None:
        return ["the shapes of the model are not known"]
    found: list[str] = []
    first = estimate(model, setup_of(point, parameters, Measured()))
    weights = point.get("weights_gib_per_gpu")
    if weights and (first.weights_gib is None or off(first.weights_gib, weights) > 1):
        found.append(f"weights {first.weights_gib} GiB instead of {weights}")
    available = point.get("available_kv_gib_per_gpu")
    if available is not None and point.get("kv_tokens"):
        tokens = estimate(model, setup_of(point, parameters, Measured(available=available))).tokens
        if tokens is None or off(tokens, point["kv_tokens"]) > 2:
            found.append(f"{tokens} tokens instead of {point['kv_tokens']}")
    return found + _identity(point, model, parameters) + _started(point, first)


def _identity(point: dict[str, Any], model: Architecture, parameters: int | None) -> list[str]:
    """With the measured activation, what is left for the cache follows within 0.1 GiB."""
    if not all(
        point.get(key) for key in ("gpu_total_gib", "gmu", "activation_gib", "available_kv_gib_per_gpu")
    ):
        return []
    measured = Measured(
        activation=point["activation_gib"],
        non_torch=point.get("non_torch_gib"),
        graphs=0.0,
        weights=point["weights_gib_per_gpu"],
    )
    left = estimate(model, setup_of(point, parameters, measured)).available_gib
    assert left is not None
    seen = point["available_kv_gib_per_gpu"]
    return [] if abs(left - seen) < 0.15 else [f"{left} GiB left instead of {seen}"]


def _started(point: dict[str, Any], found: Estimate) -> list[str]:
    if "gmu" not in point or ("gpu_total_gib" not in point and named(str(point.get("gpu", ""))) is None):
        return []
    refused = Verdict.NO if point["ok"] else Verdict.FITS
    return [f"{found.verdict.value}, and ok is {point['ok']}"] if found.verdict is refused else []


@pytest.mark.parametrize("point", points(OWN))
def test_a_published_figure_is_met(point: dict[str, Any]) -> None:
    assert misses(point) == []


@pytest.mark.parametrize("point", points(SHARED))
def test_a_measured_point_is_met_or_named(point: dict[str, Any]) -> None:
    found = misses(point)
    if point["id"] in NOT_MET:
        assert found, "this point is met after all: take it off the list"
        pytest.skip(f"{NOT_MET[point['id']]}: {'; '.join(found)}")
    assert found == []
