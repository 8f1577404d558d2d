"""LoRA adapters that come and go while an engine runs, in vLLM's words (entrypoints/openai/models/serving.py, 0.20).

There are no files here: a place with `missing` in it is one that the engine does not find.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from gpufleet.lab.vllm.replies import Chunk, Reply, Request, error
from gpufleet.lab.vllm.spec import EngineSpec

Changed = tuple[EngineSpec, Reply]


def load(spec: EngineSpec, request: Request) -> Changed | Reply:
    """POST /v1/load_lora_adapter: the engine with one adapter more, or why not."""
    body = _body(request)
    name, path = body.get("lora_name"), body.get("lora_path")
    if not isinstance(name, str) or not isinstance(path, str) or not name or not path:
        return error(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
    if name in spec.adapters:
        return error(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")
    if "missing" in path:
        return error(404, "NotFoundError", f"Loading lora {name} failed: No adapter found for {path}")
    return replace(spec, adapters={**spec.adapters, name: path}), _said(name, "added")


def unload(spec: EngineSpec, request: Request) -> Changed | Reply:
    """POST /v1/unload_lora_adapter: the engine with one adapter fewer, or why not."""
    name = _body(request).get("lora_name")
    if not isinstance(name, str) or not name:
        return error(400, "InvalidUserInput", "'lora_name' needs to be provided to unload a LoRA adapter.")
    if name not in spec.adapters:
        return error(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
    kept = {known: path for known, path in spec.adapters.items() if known != name}
    return replace(spec, adapters=kept), _said(name, "removed")


def _said(name: str, what: str) -> Reply:
    text = f"Success: LoRA adapter '{name}' {what} successfully."
    return Reply(200, {"content-type": "text/plain; charset=utf-8"}, (Chunk(text.encode()),))


def _body(request: Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return body if isinstance(body, dict) else {}
