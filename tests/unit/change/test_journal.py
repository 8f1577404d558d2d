"""Journal records: there and back, secrets by reference alone, and no story that the machine would not tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.change.events import (
    Act,
    Ended,
    Ending,
    Event,
    Found,
    Goal,
    Intended,
    Observed,
    Publishing,
    Reopened,
    Result,
    Settled,
    Turned,
)
from gpufleet.change.model import Check, Irreversible, Plan, Step
from gpufleet.change.records import document, journal
from gpufleet.change.records.document import (
    JournalError,
    decode_plan,
    encode_plan,
    packed,
    plan_record,
    plan_value,
    secrets_of,
)
from gpufleet.change.records.journal import (
    SCHEMA,
    Opened,
    Record,
    body_of,
    decode,
    encode,
    event_of,
    head_of_copy,
    opening,
    replay,
)
from gpufleet.names import HostName, StepId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from tests.kit.change_plans import plan, step

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NAME = st.text("abcdefgh-", min_size=1, max_size=8)
VAULT = {"${env:A}": "hf_aaaaaaaaaaaaaaaaaaaa", "${file:b}": "bravo", "${cmd:pass c}": "char lie"}


def resolve(reference: str) -> Secret[str]:
    return Secret(VAULT[reference], reference=reference)


secret_words = st.sampled_from(sorted(VAULT)).map(resolve)
secret_files = st.lists(
    st.tuples(st.sampled_from("XY"), st.sampled_from(sorted(VAULT))), min_size=1, max_size=3
).map(
    lambda lines: Secret(
        "".join(f"{name}={VAULT[reference]}\n" for name, reference in lines).encode(),
        reference="".join(f"{name}={reference}\n" for name, reference in lines),
    )
)
commands = st.builds(
    Command,
    argv=st.lists(TEXT | secret_words, min_size=1, max_size=3).map(tuple),
    script=st.sampled_from(["", "true", 'echo "$1"\n']),
    stdin=st.none() | st.binary(max_size=20) | secret_files,
    timeout=st.floats(1, 100),
    mutates=st.booleans(),
    become=st.booleans(),
)
checks = st.builds(
    Check, look=commands, expect=NAME, data=st.lists(TEXT, max_size=2).map(tuple), within=st.floats(0, 9)
)
sequences = st.lists(commands, max_size=2).map(tuple)
steps = st.builds(
    Step,
    id=NAME.map(StepId),
    host=NAME.map(HostName),
    title=TEXT,
    do=sequences,
    undo=sequences | st.builds(Irreversible, TEXT),
    verify=checks,
    absent=st.none() | checks,
    after=st.frozensets(NAME.map(StepId), max_size=2),
    phase=NAME,
)
plans = st.builds(
    Plan,
    title=TEXT,
    command=TEXT,
    steps=st.lists(steps, max_size=3).map(tuple),
    fingerprint=TEXT,
    context=st.dictionaries(NAME, TEXT, max_size=2),
)


@given(plans)
def test_a_plan_comes_back_as_it_was_and_its_secrets_never_touch_the_file(the_plan):
    content = encode_plan(the_plan)
    assert decode_plan(content, resolve) == the_plan
    assert b"hf_aaaa" not in content
    if secrets_of(the_plan):
        assert b"${" in content


def large_plan(hosts: int = 60) -> Plan:
    """A fleet: every step waits for the same ones and runs the same script."""
    names = tuple(StepId(f"start-{number}") for number in range(hosts))
    script = "echo 'the same for every host'\n" * 20
    return plan(
        *(
            step(name, f"host-{name}", do=(Command(script=script, mutates=True),), after=frozenset(names[:9]))
            for name in names
        )
    )


def test_a_large_plan_is_packed_for_hosts_and_comes_back():
    the_plan = large_plan()
    first = Record(SCHEMA, 1, "t", Opened("r", "ann", "seat", the_plan.hosts, plan_record(the_plan)))
    line = head_of_copy(first)
    assert len(line) * 8 < len(encode(first))
    assert line.count(b"\n") == 1
    assert opening((decode(line),), resolve).plan == the_plan


def test_a_small_plan_stays_readable_on_hosts():
    first = Record(SCHEMA, 1, "t", Opened("r", "ann", "s", ("a",), plan_record(plan(step("a1", "a")))))
    assert head_of_copy(first) == encode(first)


@pytest.mark.parametrize(
    "harm",
    [lambda text: text[:-8], lambda text: "AAAA" + text, lambda text: "no base64", lambda _text: "eJw="],
)
def test_a_damaged_packed_plan_is_an_error(harm):
    record = packed(plan_record(large_plan()))
    broken = document.PlanRecord(record.title, record.command, packed=harm(record.packed))
    with pytest.raises(JournalError, match="packed plan is damaged"):
        plan_value(broken, resolve)


def some_events() -> list[Event]:
    return [
        Intended(step=StepId("s"), act=Act.DO),
        Ended(step=StepId("s"), act=Act.UNDO, result=Result.LOST, reason="cut", hint="plug it in"),
        Observed(step=StepId("s"), act=Act.DO, found=Found.UNKNOWN, reason="no answer"),
        Turned(reason="asked"),
        Reopened(goal=Goal.UNDO),
        Publishing(),
        Settled(ending=Ending.STUCK),
    ]


@pytest.mark.parametrize("event", some_events(), ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event):
    line = encode(Record(SCHEMA, 1, "2026-01-01T00:00:00+00:00", body_of(event)))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert event_of(decode(line).body) == event


def test_what_hosts_said_is_scrubbed():
    event = Ended(
        step=StepId("s"), act=Act.DO, result=Result.FAILED, reason="bad hf_aaaaaaaaaaaaaaaaaaaa or opensesame"
    )
    body = body_of(event, (Secret("opensesame"),))
    assert b"opensesame" not in encode(Record(SCHEMA, 1, "", body))
    assert b"hf_aaaa" not in encode(Record(SCHEMA, 1, "", body))


def test_a_secret_without_a_reference_is_refused_and_not_shown():
    bare = Command(argv=("login", Secret("opensesame")), mutates=True)
    with pytest.raises(JournalError) as caught:
        encode_plan(plan(step("a1", "a", do=(bare,))))
    assert "step a1 on a" in str(caught.value)
    assert "opensesame" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"rubbish",
        b"\xff\xfe",
        b'{"v":1,"seq":1,"at":"","body":{"type":"nonsense"}}',
        b'{"v":1',
        b"null",
    ],
)
def test_what_is_no_record_is_an_error(line):
    with pytest.raises(JournalError):
        decode(line)


def test_a_later_schema_is_refused_by_name():
    line = encode(Record(SCHEMA + 1, 1, "", journal.Publishing()))
    with pytest.raises(JournalError, match=f"journal schema {SCHEMA + 1}"):
        decode(line)


def test_an_impossible_history_is_refused_with_its_record():
    the_plan = plan(step("a1", "a"))
    first = Record(SCHEMA, 1, "t", Opened("r", "ann", "seat", ("a",), plan_record(the_plan)))
    done = Record(SCHEMA, 2, "t", body_of(Ended(step=StepId("a1"), act=Act.DO, result=Result.SUCCEEDED)))
    assert opening((first, done), resolve).plan == the_plan
    with pytest.raises(JournalError, match="record 2 cannot follow"):
        replay((first, done), the_plan)
    with pytest.raises(JournalError, match="does not begin with the plan"):
        opening((done,), resolve)
