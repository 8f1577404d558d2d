"""`convert` reports every part that does not fit, at its line and in words of YAML."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from gpufleet.errors import DocumentError
from gpufleet.located import NEXT, Located, Problems, convert, did_you_mean
from gpufleet.yaml_source import parse


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: Annotated[int, msgspec.Meta(ge=1)]
    second: int = 2


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: Literal["tcp", "udp"] = "tcp"
    inner: Inner | None = None
    many: dict[str, Inner | None] = {}
    words: list[str] = []
    secret: Annotated[str, msgspec.Meta(pattern="^ref:", description="a reference")] | None = None


def converted(text: str) -> tuple[Outer | None, list[str]]:
    problems = Problems()
    located = parse(text.encode(), "f.yaml", problems)
    assert located is not None
    value = convert(located, Outer, problems)
    return value, [f"{row.where}: {row.message} {row.hint}".strip() for row in problems.rows]


def test_what_fits_is_converted():
    value, problems = converted("name: a\ninner: {first: 3}\nmany: {x: {first: 1}, y: }\n")
    assert value == Outer(name="a", inner=Inner(3), many={"x": Inner(1), "y": None})
    assert problems == []


def test_all_mistakes_at_once_and_the_rest_is_kept():
    value, problems = converted(
        "name: a\nkind: tpc\ninner:\n  first: 0\n  secnd: 1\nmany:\n  x: 3\n  y: {first: two}\n"
        "words: [one, 2, three]\nsecret: hunter2\n"
    )
    assert problems == [
        "f.yaml:2: `kind`: unknown value 'tpc' did you mean `tcp`?",
        "f.yaml:4: `first`: expected a whole number >= 1",
        "f.yaml:5: unknown field `secnd`, did you mean `second`?",
        "f.yaml:7: `x`: expected a mapping, got a whole number",
        "f.yaml:8: `first`: expected a whole number, got text",
        "f.yaml:9: `words`: expected text, got a whole number",
        "f.yaml:10: `secret`: expected a reference",
    ]
    assert value == Outer(name="a", many={}, words=["one", "three"])


def test_a_missing_field_and_a_wrong_kind_of_document():
    assert converted("kind: udp") == (None, ["f.yaml:1: `name` is missing"])
    assert converted("[1]") == (None, ["f.yaml:1: expected a mapping, got a list"])


def test_one_problem_is_the_error_itself_and_several_are_rows():
    problems = Problems()
    problems.raise_if_any("wrong")
    problems.add("f.yaml:3", "odd", "make it even")
    with pytest.raises(DocumentError) as one:
        problems.raise_if_any("wrong")
    assert (str(one.value), one.value.hints) == ("f.yaml:3: odd", ("make it even",))
    for line in range(60):
        problems.add(f"f.yaml:{line + 10}", "odd")
    with pytest.raises(DocumentError, match="wrong: 61 problems") as many:
        problems.raise_if_any("wrong")
    assert len(many.value.rows) == 50
    assert many.value.hints == ("11 more problems are not shown", NEXT)


def test_plain_values_can_be_located_too():
    located = Located.of({"a": [1, {"b": 2}]}, "x")
    assert located.plain() == {"a": [1, {"b": 2}]}
    assert located.at("a", 1, "b").value == 2
    assert list(located.items()) == []
    assert [name for name, _ in located.entries()] == ["a"]
    assert located.where == "x"


def test_did_you_mean():
    assert did_you_mean("adress", ["address", "user"]) == "did you mean `address`?"
    assert did_you_mean("zzz", ["address"]) == ""
