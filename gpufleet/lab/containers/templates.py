"""The part of Go's templates that `--format` of docker and podman is used with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")
_INDEX = re.compile(r'index\s+(\.[\w.]*)\s+"([^"]*)"')


class TemplateFault(Exception):
    """An action that the lab does not know."""


def render(template: str, value: Mapping[str, Any]) -> str:
    """The template with each action replaced, and with tabs and line ends for their escapes."""
    text = template.removeprefix("table ").replace("\\t", "\t").replace("\\n", "\n")
    return _ACTION.sub(lambda found: _action(found.group(1), value), text)


def _action(action: str, value: Mapping[str, Any]) -> str:
    if action.startswith("json "):
        return json.dumps(_path(action[5:].strip(), value), separators=(",", ":"), ensure_ascii=False)
    found = _INDEX.fullmatch(action)
    if found is not None:
        inner = _path(found.group(1), value)
        return _text(inner.get(found.group(2), "") if isinstance(inner, Mapping) else "")
    found = re.fullmatch(r'\.Label\s+"([^"]*)"', action)
    if found is not None:
        return _text(value.get("_labels", {}).get(found.group(1), ""))
    if re.fullmatch(r"\.[\w.]*", action):
        return _text(_path(action, value))
    raise TemplateFault(f"template action {{{{{action}}}}}")


def _path(path: str, value: Any) -> Any:
    for name in [part for part in path.split(".") if part]:
        if not isinstance(value, Mapping) or name not in value:
            raise TemplateFault(f"template: map has no entry for key {name!r}")
        value = value[name]
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if not key.startswith("_")}
    return value


def _text(value: Any) -> str:
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{_text(item)}" for key, item in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(_text(item) for item in value) + "]"
    return str(value)
