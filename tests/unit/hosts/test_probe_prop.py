"""Whatever a host prints: facts or Unknown, never an exception.

SAFETY: no parser raises; a word where a number belongs is never a number.
"""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts import doctor, encode
from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes import container, nvidia_smi, nvidia_xml, script, system
from gpufleet.hosts.probes.script import Section
from tests.unit.hosts.answers import TABLES, facts, healthy, sliced

ANY = st.text(st.characters(codec="utf-8"), max_size=300)
RECORDED = [path.read_text("utf-8") for path in sorted(TABLES.glob("*/*/output.txt"))]
NAMES = sorted({*healthy(), *sliced(), "version-sudo", "sockets"})


@st.composite
def damaged(draw):
    """A recorded answer with a piece cut out, doubled, or replaced."""
    text = draw(st.sampled_from(RECORDED))
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return text[:first] + draw(st.one_of(st.just(""), ANY, st.just(text[first:last] * 2))) + text[last:]


TEXT = st.one_of(ANY, st.sampled_from(RECORDED), damaged())
SECTION = st.builds(
    Section,
    name=st.just("any"),
    text=TEXT,
    errors=ANY,
    status=st.sampled_from([None, 0, 0, 0, 1, 2, 9, 15, 18, 124, 127, 255]),
)


@given(TEXT)
def test_every_parser_answers(text):
    nvidia_smi.parse_listing(text)
    nvidia_smi.parse_rows(text, nvidia_smi.QUERY_FIELDS, free="name")
    nvidia_smi.parse_gpu_instances(text)
    nvidia_smi.parse_compute_instances(text)
    nvidia_xml.parse_report(text)
    container.parse(text)
    for parse in (system.parse_disks, system.parse_lease, system.parse_runs, system.parse_sudo):
        parse(Section(name="any", text=text, status=0))
    system.parse_ports(Section(name="any", text=text, status=0), None)
    system.parse_ports(None, Section(name="any", text=text, status=0))


@given(st.dictionaries(st.sampled_from(NAMES), SECTION), st.sampled_from([healthy, sliced]))
def test_any_mix_of_answers_is_facts_findings_and_json(changed, base):
    seen = facts(base() | changed)
    assert all(finding.message and finding.fix for finding in doctor.diagnose(seen))
    json.dumps(encode.encode(seen))


@given(ANY)
def test_a_word_is_never_a_number(text):
    number = nvidia_smi.parse_number(text)
    if not any(sign.isdigit() for sign in text):
        assert isinstance(number, Unknown)
        assert number.reason


@given(st.integers(0, 10**9), st.sampled_from(["", " MiB", " %", " C", "MiB"]))
def test_a_number_keeps_its_value(value, unit):
    assert nvidia_smi.parse_number(f"{value}{unit}") == Known(value)


LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=80).filter(
        lambda line: "@@gf" not in line
    ),
    max_size=4,
)


@given(st.dictionaries(st.sampled_from(NAMES), st.tuples(LINES, st.integers(0, 255)), min_size=1))
def test_sections_come_back_as_they_were(wanted):
    stream = ""
    for name, (lines, status) in wanted.items():
        stream += f"@@gf begin {name}\n" + "".join(f"{line}\n" for line in lines)
        stream += f"\n@@gf end {name} {status}\n"
    seen = script.parse(stream, "")
    assert {name: (one.text, one.status) for name, one in seen.items()} == {
        name: ("\n".join(lines), status) for name, (lines, status) in wanted.items()
    }


@given(ANY)
def test_no_answer_moves_the_cursor_of_a_terminal(text):
    seen = script.parse(f"@@gf begin list\n{text}\n\n@@gf end list 0\n", "")
    for one in seen.values():
        assert all(
            sign in "\n\t" or sign.isprintable() or unicodedata.category(sign) != "Cc" for sign in one.text
        )
        assert one.text.splitlines() == one.text.removesuffix("\n").split("\n") or not one.text


@given(TEXT, st.sampled_from(NAMES))
def test_a_section_cannot_speak_for_another(text, name):
    """What one program prints, markers of others included, changes no other section for the better."""
    stream = f"@@gf begin list\n{text}\n@@gf begin {name}\nforged\n@@gf end {name} 0\n\n@@gf end list 0\n"
    seen = script.parse(stream + "@@gf begin runs\ntrue\n\n@@gf end runs 0\n", "")
    assert set(seen) <= {"list", "runs"}
    assert seen["runs"].text == "true"
