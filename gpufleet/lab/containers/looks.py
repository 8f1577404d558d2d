"""Verbs of docker and podman that only look."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.lab.containers import json as shape
from gpufleet.lab.containers.call import Invocation, Verb
from gpufleet.lab.containers.model import Container, Refused, full_reference
from gpufleet.lab.containers.words import Words
from gpufleet.lab.shell.streams import byte_text
from gpufleet.lab.shell.syntax import Unsupported


def _ps(invocation: Invocation) -> int:
    words = invocation.read("a all q quiet no-trunc", "f filter format n last")
    engine = invocation.engine
    full = "no-trunc" in words.flags
    everything = bool({"a", "all"} & words.flags)
    shown = [one for one in reversed(engine.containers.values()) if everything or one.running]
    for text in words.all("f", "filter"):
        shown = [one for one in shown if _matches(one, text)]
    if {"q", "quiet"} & words.flags:
        invocation.say(*(one.id if full else one.id[:12] for one in shown))
        return 0
    rows = [shape.row(engine, one, full=full) for one in shown]
    template = words.last("format")
    if template == "json":
        return _ps_json(invocation, rows)
    if template:
        return invocation.print_as(template, rows)
    cells = ("ID", "Image", "Command", "RunningFor", "Status", "Ports", "Names")
    table = [("CONTAINER ID", "IMAGE", "COMMAND", "CREATED", "STATUS", "PORTS", "NAMES")]
    _table(invocation, [*table, *(tuple(str(one[cell]) for cell in cells) for one in rows)])
    return 0


def _ps_json(invocation: Invocation, rows: Sequence[Mapping[str, Any]]) -> int:
    """`--format json`: an array from podman, lines from docker, and the bare word from docker before 23."""
    if invocation.engine.kind == "podman":
        invocation.say(
            json.dumps(
                [{**one, "Id": one["ID"], "Names": [one["Names"]], "Labels": one["_labels"]} for one in rows]
            )
        )
        return 0
    if invocation.engine.major < 23:
        invocation.say(*("json" for _ in rows))
        return 0
    return invocation.print_as("{{json .}}", rows)


def _table(invocation: Invocation, rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[at]) for row in rows) + 3 for at in range(len(rows[0]))]
    for row in rows:
        invocation.say("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _matches(container: Container, text: str) -> bool:
    key, _, value = text.partition("=")
    match key:
        case "label":
            name, given, wanted = value.partition("=")
            labels = container.wish.labels
            return name in labels and (not given or labels[name] == wanted)
        case "name":
            return (
                re.search(value, container.name) is not None
                or re.search(value, f"/{container.name}") is not None
            )
        case "id":
            return container.id.startswith(value)
        case "status":
            return container.status == value
        case "ancestor":
            return container.wish.image == value
        case _:
            raise Unsupported(f"ps --filter {key}")


def _inspect(invocation: Invocation) -> int:
    words = invocation.read("s size", "f format type")
    found, status = [], 0
    for name in words.operands:
        try:
            found.append(shape.describe(invocation.engine, invocation.engine.find(name)))
        except Refused:
            if invocation.engine.kind == "podman":
                status = invocation.complain(f'Error: inspecting object: no such object: "{name}"', 125)
                continue
            noun = "container" if words.last("type") == "container" else "object"
            status = invocation.complain(f"Error: No such {noun}: {name}")
    return _described(invocation, words, found) or status


def _described(invocation: Invocation, words: Words, found: Sequence[Mapping[str, Any]]) -> int:
    template = words.last("format") or words.last("f")
    if template and not found:
        # docker's template writer ends with a line whatever it wrote
        invocation.say(*([""] if invocation.engine.kind == "docker" else []))
        return 0
    if template and template != "json":
        return invocation.print_as(template, found)
    invocation.say(json.dumps(found, indent=None if template else 4, ensure_ascii=False))
    return 0


def _image_inspect(invocation: Invocation) -> int:
    words = invocation.read("", "f format")
    found, status = [], 0
    for name in words.operands:
        image = invocation.engine.image(name)
        if image is None:
            if invocation.engine.kind == "podman":
                status = invocation.complain(f"Error: inspecting object: {name}: image not known", 125)
                continue
            status = invocation.complain(f"Error response from daemon: No such image: {full_reference(name)}")
        else:
            found.append(shape.image_description(image))
    return _described(invocation, words, found) or status


def _images(invocation: Invocation) -> int:
    words = invocation.read("q quiet a all no-trunc digests", "f filter format")
    rows = [shape.image_row(image) for image in invocation.engine.images.values()]
    if words.operands:
        rows = [
            row
            for row in rows
            if words.operands[0] in {row["Repository"], f"{row['Repository']}:{row['Tag']}"}
        ]
    if {"q", "quiet"} & words.flags:
        invocation.say(*(row["ID"] for row in rows))
        return 0
    if template := words.last("format"):
        return invocation.print_as("{{json .}}" if template == "json" else template, rows)
    cells = ("Repository", "Tag", "ID", "CreatedSince", "Size")
    table = [("REPOSITORY", "TAG", "IMAGE ID", "CREATED", "SIZE")]
    _table(invocation, [*table, *(tuple(row[cell] for cell in cells) for row in rows)])
    return 0


def _logs(invocation: Invocation) -> int:
    words = invocation.read("t timestamps", "n tail since")
    stamped = invocation.engine.stamped_logs(invocation.engine.find(words.operands[0]))
    since = words.last("since")
    if since and not since[:4].isdigit():
        raise Unsupported(f"{invocation.engine.kind} logs --since {since}")
    if {"t", "timestamps"} & words.flags:
        lines = [f"{at} {line}" for at, line in stamped if at >= since]
    else:
        lines = [line for at, line in stamped if at >= since]
    count = words.last("tail") or words.last("n") or "all"
    if count != "all":
        lines = lines[len(lines) - int(count) :] if int(count) < len(lines) else lines
        lines = lines if int(count) else []
    invocation.call.out.write(byte_text("".join(lines)))
    return 0


def _info(invocation: Invocation) -> int:
    words = invocation.read("", "f format")
    facts = shape.info(invocation.engine)
    if template := words.last("format") or words.last("f"):
        return invocation.print_as("{{json .}}" if template == "json" else template, [facts])
    invocation.say(*(f" {key}: {value}" for key, value in facts.items()))
    return 0


def _version(invocation: Invocation) -> int:
    words = invocation.read("", "f format")
    facts = shape.version(invocation.engine)
    template = words.last("format") or words.last("f")
    return invocation.print_as("{{json .}}" if template in {"", "json"} else template, [facts])


LOOKS: dict[str, Verb] = {
    "ps": _ps,
    "ls": _ps,
    "inspect": _inspect,
    "image inspect": _image_inspect,
    "images": _images,
    "image ls": _images,
    "logs": _logs,
    "info": _info,
    "system info": _info,
    "version": _version,
}
