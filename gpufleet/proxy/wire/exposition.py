"""Prometheus text as other programs write it: the samples of some families, picked out of a whole page.

A page of an engine has hundreds of lines and a handful matters, so one pattern finds those and steps over the rest.
What is accepted is the text format 0.0.4 and of OpenMetrics 1.0 what is the same in both: a timestamp or an exemplar
behind the value is passed over. Sources: prometheus.io "Exposition formats"; OpenMetrics 1.0, section "Text format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*+)"', re.DOTALL)
_BOUND = re.compile(rb'(?:^|,)[ \t]*le="([^"\\]*)"')
_ESCAPE = re.compile(r'\\([\\n"])')

Sample = tuple[str, bytes, float]
"""Name, the labels as they stand between the braces, value; NaN and the infinities are values here."""


class Picker:
    """Finds the samples of `names`: exactly these, and nothing that only begins like them."""

    __slots__ = ("_pattern",)

    def __init__(self, names: Iterable[str]) -> None:
        wanted = "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name)))
        # The line feed in front and possessive quantifiers: each byte is looked at once, whatever the page holds.
        self._pattern = re.compile(
            rb'\n(%s)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]++([^ \t\r\n]++)'
            % wanted.encode("ascii")
        )

    def samples(self, page: bytes) -> Iterator[Sample]:
        """In the order of the page. A line whose value is no number is passed over."""
        for found in self._pattern.finditer(b"\n" + page):
            name, labels, value = found.groups()
            try:
                number = float(value)
            except ValueError:
                continue
            yield name.decode("ascii"), labels or b"", number


def parse_labels(text: bytes) -> dict[str, str]:
    """The labels of one sample, with their escapes undone."""
    return {
        name.decode("ascii"): _ESCAPE.sub(_unescaped, value.decode("utf-8", "replace"))
        for name, value in _LABEL.findall(text)
    }


def upper_bound(labels: bytes) -> bytes:
    """The label `le` of a bucket, for which a whole parse would cost four times as much; empty when there is none."""
    found = _BOUND.search(labels)
    return found[1] if found is not None else b""


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
