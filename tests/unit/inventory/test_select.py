"""Selectors: names, globs, groups, labels, negation, and words that match nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import SelectionError
from gpufleet.inventory.model import Address, Host, Inventory
from gpufleet.inventory.select import select, surviving
from gpufleet.names import HostName


def made(name: str, groups: set[str], **labels: str) -> Host:
    return Host(name=HostName(name), address=Address(name), groups=frozenset(groups), labels=labels)


HOSTS = (
    made("gpu-01", {"a100"}, rack="r1"),
    made("gpu-02", {"a100", "spare"}, rack="r2"),
    made("gpu-10", {"h100"}, rack="r2", note="a=b"),
    made("edge", set()),
)
FLEET = Inventory(
    hosts={host.name: host for host in HOSTS},
    groups={
        "a100": (HostName("gpu-01"), HostName("gpu-02")),
        "h100": (HostName("gpu-10"),),
        "spare": (HostName("gpu-02"),),
    },
)


def names(*words: str) -> list[str]:
    return [host.name for host in select(FLEET, words)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["all"], ["gpu-01", "gpu-02", "gpu-10", "edge"]),
        (["edge", "gpu-01"], ["gpu-01", "edge"]),
        (["edge,gpu-01"], ["gpu-01", "edge"]),
        (["gpu-0*"], ["gpu-01", "gpu-02"]),
        (["gpu-?0"], ["gpu-10"]),
        (["gpu-[01]1"], ["gpu-01"]),
        (["group=a100"], ["gpu-01", "gpu-02"]),
        (["group=*100"], ["gpu-01", "gpu-02", "gpu-10"]),
        (["rack=r2"], ["gpu-02", "gpu-10"]),
        (["note=a=b"], ["gpu-10"]),
        (["group=a100", "!gpu-01"], ["gpu-02"]),
        (["!gpu-01", "group=a100"], ["gpu-02"]),
        (["!group=a100"], ["gpu-10", "edge"]),
        (["!gpu-01,!rack=r2"], ["edge"]),
        (["all, !group=spare"], ["gpu-01", "gpu-10", "edge"]),
    ],
)
def test_selections(words, expected):
    assert names(*words) == expected


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("gpu-03", "unknown host `gpu-03`", "did you mean `gpu-"),
        ("!egde", "unknown host `egde`", "did you mean `edge`?"),
        ("tpu*", "no host matches `tpu*`", "hosts: edge, gpu-01, gpu-02, gpu-10"),
        ("group=a10", "unknown group `a10`", "did you mean `a100`?"),
        ("rak=r1", "no host has a label `rak`", "did you mean `rack`?"),
        ("rack=9", "no host has `rack=9`", "values: r1, r2"),
    ],
)
def test_words_that_match_nothing(word, message, hint):
    with pytest.raises(SelectionError) as caught:
        names("edge", word)
    assert caught.value.summary == message
    assert caught.value.hints[0].startswith(hint)


def test_several_words_that_match_nothing_are_rows():
    with pytest.raises(SelectionError, match="2 words") as caught:
        names("nope", "edge", "group=nope")
    assert [row.where for row in caught.value.rows] == ["nope", "group=nope"]


@pytest.mark.parametrize("words", [(), ("",), (" , ",)])
def test_no_word_is_no_selection(words):
    with pytest.raises(SelectionError, match="no host is selected"):
        names(*words)


def test_a_selection_that_takes_everything_away_is_refused():
    with pytest.raises(SelectionError, match="`edge,!all` leaves no host"):
        names("edge", "!all")


@given(st.sets(st.sampled_from([host.name for host in HOSTS]), min_size=1))
def test_a_list_of_names_selects_just_these(wanted):
    assert set(names(*wanted)) == wanted


@given(st.text(max_size=20))
def test_any_word_selects_or_is_refused(word):
    try:
        found = select(FLEET, (word,))
    except SelectionError:
        return
    assert found


@pytest.mark.parametrize(
    ("words", "kept", "lost"),
    [
        (("all",), ("all",), ()),
        (("gone",), (), ("gone",)),
        (("gone,!gone-too", "*"), ("*",), ("gone", "!gone-too")),
        (("!gone",), ("all",), ("!gone",)),
    ],
)
def test_what_survives_of_a_selector(words, kept, lost):
    assert surviving(FLEET, words) == (kept, lost)


def test_nothing_survives_of_a_selector_whose_names_are_gone_but_what_it_takes_away():
    known = next(iter(FLEET.hosts))
    assert surviving(FLEET, ("gone", f"!{known}")) == ((), ("gone",))
    assert surviving(FLEET, (f"!{known}",)) == ((f"!{known}",), ())
