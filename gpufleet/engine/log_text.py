"""The text of a log as programs wrote it -> plain lines, and what stands in front of them.

What is removed: colours, progress bars that overwrite themselves (each state becomes a line), NUL bytes, the JSON
of docker's log files, the time and source in front that `docker logs -t`, compose and journald put there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import msgspec

from gpufleet.redact import Secret, scrub

SHOWN = 500
"""Characters of one line that are shown."""

BEFORE, AFTER = 1024, 2048
"""Characters around a find that count as its line, when the line is longer."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,30}[ -/]{0,5}[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_FRONT = re.compile(
    r"(?:[\w.-]{1,100} {1,20}\| )?"  # compose
    r"(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S{1,100} [\w.-]{1,60}\[\d{1,10}\]: )?"  # journald, syslog
    r"(?:\[?\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?\]?(?: |$))?"  # docker logs -t
    r"(?:(?:\([^()\n]{1,80}\)|\[[a-z]{1,12}\d{1,5}\]:?) ){0,4}"  # (EngineCore pid=77), [rank0]:
)
_LEVEL = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL):?(?: {1,9}\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?)?(?: {1,9}|$)"
    r"(?:\[?[\w./ -]{1,100}:\d{1,6}\] ?)?"  # [core.py:1], and core.py:1] before vLLM 0.8.3
)


class Weight(Enum):
    """How much a line says about a failure."""

    FULL = 0
    """An error, or a line without a level, as exceptions are printed."""
    LITTLE = 1
    """A warning, or the source code that a traceback quotes."""
    NONE = 2
    """Said in passing: INFO and DEBUG."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or the part of a very long one around what was found in it.

    Attributes:
        text: without what stands in front.
        error: whether it has the level ERROR or worse.
    """

    text: str
    weight: Weight
    error: bool = False


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What would move a terminal's cursor or change its state, but tabs and newlines."""


def plain(log: str) -> str:
    """A log as lines that end with a newline each and hold nothing but text."""
    if log.lstrip()[:9].replace(" ", "")[:8] == '{"log":"':
        log = "".join(map(_of_json, log.split("\n")))
    if "\x1b" in log:
        log = _ESCAPE.sub("", log)
    if "\0" in log:
        log = log.replace("\0", "")
    if "\r" in log:
        log = log.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", log) if _CONTROL.search(log) else log


def _of_json(line: str) -> str:
    """One line of docker's json-file driver; what is none stays."""
    try:
        record = msgspec.json.decode(line.strip())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return f"{line}\n" if line else ""
    said = record.get("log") if isinstance(record, dict) else None
    return said if isinstance(said, str) else f"{line}\n"


def line_at(log: str, place: int) -> Line:
    """The line of a plain log around a place."""
    begin, end = log.rfind("\n", max(0, place - BEFORE), place), log.find("\n", place, place + AFTER)
    if begin < 0 and place > BEFORE:  # a very long line: its front is not looked for, and no word is cut
        space = log.find(" ", place - BEFORE, place)
        begin = space if space >= 0 else place - 1
        return Line(log[begin + 1 : end if end >= 0 else place + AFTER], Weight.FULL)
    return read_line(log[begin + 1 : end if end >= 0 else place + AFTER])


def read_line(text: str) -> Line:
    """A line without process, level, time and place in front."""
    front = _FRONT.match(text)
    rest = text[front.end() :] if front else text
    level = _LEVEL.match(rest)
    word = level["level"] if level else ""
    said = rest[level.end() :] if level else rest
    inner = _FRONT.match(said)  # ERROR 01-01 00:00:00 [core.py:1] (Worker pid=1) ...
    said = said[inner.end() :] if inner and inner.end() else said
    if word in {"INFO", "DEBUG"}:
        weight = Weight.NONE
    elif word in {"WARNING", "WARN"} or said.startswith("    "):
        weight = Weight.LITTLE
    else:
        weight = Weight.FULL
    return Line(said.strip(), weight, word in {"ERROR", "CRITICAL"})


def shown(text: str, known: tuple[Secret[str], ...] = ()) -> str:
    """A line as people may see it: without secrets, not longer than they read."""
    return scrub(text, known)[:SHOWN].rstrip()


def tail(log: str, lines: int = 40, known: tuple[Secret[str], ...] = ()) -> str:
    """The end of a log, scrubbed; of lines without end the beginnings."""
    size = lines * 4 * AFTER
    end = log[-size:]
    if len(log) > size:  # the first line is cut, perhaps in the middle of a secret
        end = end.partition("\n" if "\n" in end else " ")[2] or end
    last = [line for line in plain(end).split("\n") if line.strip()][-lines:]
    return "\n".join(line[:AFTER].rstrip() for line in scrub("\n".join(last), known).split("\n"))
