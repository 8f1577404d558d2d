"""YAML with lines: what is read, what is refused, and where the message points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import DocumentError
from gpufleet.located import Located, Problems
from gpufleet.yaml_source import parse, read


def parsed(text: str | bytes) -> tuple[Located | None, Problems]:
    problems = Problems()
    content = text.encode() if isinstance(text, str) else text
    return parse(content, "f.yaml", problems), problems


def plain(text: str) -> object:
    located, problems = parsed(text)
    assert problems.rows == []
    assert located is not None
    return located.plain()


def complaints(text: str | bytes) -> list[str]:
    return [f"{row.where}: {row.message}" for row in parsed(text)[1].rows]


def test_remembers_the_line_of_every_key_and_item():
    located, _ = parsed("# a comment\nhosts:\n  a:\n    port: 22\n  b: [1,\n    2]\n")
    assert located is not None
    assert located.at("hosts").line == 2
    assert located.at("hosts", "a", "port").where == "f.yaml:4"
    assert [item.line for item in located.at("hosts", "b").items()] == [5, 6]
    assert located.at("hosts", "a", "nothing", "below").where == "f.yaml:3"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("''", ""),
        ("010", 10),
        ("0x1f", 31),
        ("-3", -3),
        ("1.5e3", 1500.0),
        ("12:30", "12:30"),
        ("2001:db8::12", "2001:db8::12"),
        ("192.0.2.5", "192.0.2.5"),
        ("2020-01-01", "2020-01-01"),
        ("'7'", "7"),
        ("!!str 7", "7"),
        ("1" * 400, "1" * 400),
    ],
)
def test_scalars_follow_the_core_schema(text, value):
    assert plain(f"a: {text}") == {"a": value}


def test_aliases_and_merge_keys():
    text = "base: &base {user: ops, port: 22}\nhost:\n  <<: *base\n  port: 23\nagain: *base\n"
    assert plain(text) == {
        "base": {"user": "ops", "port": 22},
        "host": {"user": "ops", "port": 23},
        "again": {"user": "ops", "port": 22},
    }
    assert complaints("a: {<<: 3}") == ["f.yaml:1: `<<` merges mappings only"]


def test_every_duplicate_key_is_named_with_both_lines():
    assert complaints("a: 1\nb: {c: 1, c: 2}\na: 2\n") == [
        "f.yaml:2: duplicate key `c`, first on line 2",
        "f.yaml:3: duplicate key `a`, first on line 1",
    ]


def test_tabs_are_explained_at_each_line():
    assert complaints("hosts:\n\ta: 1\n\tb: 2\n") == [
        "f.yaml:2: a tab indents this line",
        "f.yaml:3: a tab indents this line",
    ]
    assert plain("a:\tb\n") == {"a": "b"}


def test_syntax_errors_have_a_line():
    assert complaints("a: 1\nb: c: d\n") == [
        "f.yaml:2: not YAML: mapping values are not allowed in this context"
    ]
    assert complaints("a: 'open\n")[0].startswith("f.yaml:2: not YAML: ")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~"])
def test_an_empty_file_is_refused(text):
    assert complaints(text) == ["f.yaml: the file is empty"]


def test_text_that_is_not_utf8_names_byte_and_line():
    assert complaints(b"a: 1\nb: \xff\n") == ["f.yaml:2: not UTF-8: byte 0xff at offset 8"]
    assert complaints(b"\xff\xfea\x00") == ["f.yaml:1: the file is UTF-16"]
    assert complaints(b"a: 1\n\nb: \x07") == ["f.yaml:3: control character U+0007 is not allowed in YAML"]
    assert plain("\ufeffa: 1") == {"a": 1}


def test_an_alias_bomb_is_refused_before_it_unfolds():
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 30)]
    assert complaints("\n".join(lines)) == ["f.yaml:6: aliases unfold to more than 200000 values"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "f.yaml:1: the alias `*a` stands inside what it names"),
        ("a: *b", "f.yaml:1: the alias `*b` has no anchor before it"),
        ("a: 1\n---\nb: 1\n", "f.yaml:2: a second document begins here"),
        ("1: a", "f.yaml:1: the key `1` is not text"),
        ("true: a", "f.yaml:1: the key `true` is not text"),
        ("? [a]\n: b", "f.yaml:1: the key a mapping or list is not text"),
        ("a: !vault x", "f.yaml:1: the tag `!vault` is not supported"),
        ("a: !!python/name:os.system ''", "f.yaml:1: the tag `!!python/name:os.system` is not supported"),
        ("a: " + "[" * 100, "f.yaml:1: nested deeper than 64 levels"),
    ],
)
def test_what_is_refused(text, message):
    assert complaints(text) == [message]


def test_nesting_without_end_is_an_error_and_not_a_crash():
    assert len(complaints("[" * 100_000)) == 1
    assert len(complaints("a:\n" + "".join(" " * n + "b:\n" for n in range(1, 500)))) == 1


def test_a_large_file_is_refused_by_size(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: [" + b"x, " * 3_400_000)
    with pytest.raises(DocumentError, match="larger than 5 MB") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_a_file_that_cannot_be_read_is_one_of_ours(tmp_path):
    with pytest.raises(DocumentError, match="no such file"):
        read(tmp_path / "absent.yaml")
    with pytest.raises(DocumentError, match="is a directory"):
        read(tmp_path)


def test_the_python_parser_reads_the_same(monkeypatch):
    text = "a: &x {b: [1, two]}\nc: *x\nd: |\n  text\n"
    with_libyaml = plain(text)
    monkeypatch.setattr("yaml.__with_libyaml__", False)
    assert plain(text) == with_libyaml
    assert complaints("hosts:\n\ta: 1\n") == ["f.yaml:2: a tab indents this line"]


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_problems_with_a_place(content):
    located, problems = parsed(content)
    assert located is not None or problems.rows
    assert all(row.where.startswith("f.yaml") for row in problems.rows)


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#\n \t,?<%@`1~"), max_size=60))
def test_any_yaml_looking_text_gives_a_value_or_problems(text):
    located, problems = parsed(text)
    assert located is not None or problems.rows
