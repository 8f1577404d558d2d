"""Traces from files: JSON lines as the Mooncake project publishes them, and CSV with times and lengths alone.

JSON lines: `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids`: one number for every 512 tokens,
equal where a prompt begins equally; the last may stand for a part of a block. CSV: a header, then a time (seconds, or a
date with a time), tokens in and tokens out, under the names that Azure's public traces and BurstGPT use.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime

import msgspec

from gpufleet.errors import UsageError
from gpufleet.lab.replay.model import Arrival, Trace

MOONCAKE_BLOCK = 512
_TIME = ("timestamp", "time", "arrived_at")
_PROMPT = ("contexttokens", "request tokens", "input_length", "prompt_tokens", "num_prefill_tokens")
_OUTPUT = ("generatedtokens", "response tokens", "output_length", "output_tokens", "num_decode_tokens")


class _Line(msgspec.Struct, frozen=True, gc=False):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def parse(name: str, text: bytes, *, first: int | None = None) -> Trace:
    """The first requests of a file, or all. Raises `UsageError` with the line that is wrong."""
    read = _csv if name.lower().endswith(".csv") else _json_lines
    arrivals = read(name, text, first)
    if not arrivals:
        raise UsageError("the trace holds no request", where=name)
    arrivals.sort(key=lambda one: one.at)
    begin = arrivals[0].at
    moved = tuple(
        Arrival(at=one.at - begin, prompt=one.prompt, output=one.output, blocks=one.blocks)
        for one in arrivals
    )
    return Trace(name=name, block_tokens=MOONCAKE_BLOCK, arrivals=moved)


def _json_lines(name: str, text: bytes, first: int | None) -> list[Arrival]:
    decoder = msgspec.json.Decoder(_Line)
    found: list[Arrival] = []
    for number, line in enumerate(text.splitlines(), 1):
        if first is not None and len(found) >= first:
            break
        if not line.strip():
            continue
        try:
            one = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"not a request of a trace: {error}", where=f"{name}:{number}") from None
        _sane(name, number, one.timestamp, one.input_length, one.output_length)
        full = one.hash_ids[: one.input_length // MOONCAKE_BLOCK]
        found.append(
            Arrival(at=one.timestamp / 1000, prompt=one.input_length, output=one.output_length, blocks=full)
        )
    return found


def _csv(name: str, text: bytes, first: int | None) -> list[Arrival]:
    rows = csv.reader(io.StringIO(text.decode("utf-8", "replace")))
    header = [field.strip().lower() for field in next(rows, [])]
    columns = []
    for wanted in (_TIME, _PROMPT, _OUTPUT):
        column = next((header.index(word) for word in wanted if word in header), None)
        if column is None:
            raise UsageError(
                f"the header names no column {' or '.join(wanted)}",
                where=f"{name}:1",
                hints=("the first line of a CSV trace names its columns",),
            )
        columns.append(column)
    found: list[Arrival] = []
    for number, row in enumerate(rows, 2):
        if first is not None and len(found) >= first:
            break
        if not row:
            continue
        try:
            at = _seconds(row[columns[0]])
            prompt, output = (int(float(row[column])) for column in columns[1:])
        except (ValueError, IndexError, OverflowError):
            raise UsageError("not a time and two numbers of tokens", where=f"{name}:{number}") from None
        _sane(name, number, at, prompt, output)
        found.append(Arrival(at=at, prompt=prompt, output=output))
    return found


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        whole, _, part = text.strip().partition(".")
        return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")


def _sane(name: str, number: int, at: float, prompt: int, output: int) -> None:
    if not 0 <= at < 1e12 or not 0 <= prompt < 1e9 or not 0 <= output < 1e9:
        raise UsageError(
            "a time or a number of tokens is negative or beyond all bounds", where=f"{name}:{number}"
        )
