"""Prompts as chains of blocks: what makes them equal, what makes them differ, and images."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.wire import prompt
from gpufleet.proxy.wire.prompt import BLOCK_BYTES, BLOCK_TOKENS, MOST_BLOCKS, read

LONG = "Once upon a time there was a proxy. " * 300


def body(**fields):
    return json.dumps({"model": "m", **fields}).encode()


def said(*texts, **fields):
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[min(at, 1 + at % 2)], "content": text} for at, text in enumerate(texts)]
    return body(messages=messages, **fields)


def blocks(request):
    return read(request, len(request)).blocks


def shared(one, other):
    """How many blocks both begin with."""
    count = 0
    for left, right in zip(blocks(one), blocks(other), strict=False):
        if left != right:
            break
        count += 1
    return count


def test_a_next_turn_begins_with_all_of_the_turn_before():
    first = said(LONG, "A question. " * 200)
    second = said(LONG, "A question. " * 200, "An answer. " * 100, "More.")
    assert shared(first, second) == len(blocks(first)) > 10


@pytest.mark.parametrize(
    "other",
    [
        said("B" + LONG, "x"),
        said(LONG, "x", model="other"),
        said(LONG, "x", cache_salt="tenant"),
        said(LONG, "x", tools=[{"type": "function", "function": {"name": "f"}}]),
        said(LONG, "x", reasoning_effort="high"),
        said(LONG, "x", chat_template_kwargs={"thinking": True}),
        body(messages=[{"role": "user", "content": LONG}, {"role": "user", "content": "x"}]),
        body(system=LONG, messages=[{"role": "user", "content": "x"}]),
        body(prompt=LONG),
    ],
)
def test_what_an_engine_reads_otherwise_shares_nothing(other):
    assert shared(said(LONG, "x"), other) == 0


@pytest.mark.parametrize("fields", [{"max_tokens": 7}, {"stream": True}, {"temperature": 0.5}, {"user": "u"}])
def test_what_an_engine_does_not_read_changes_nothing(fields):
    one, other = said(LONG, "x"), said(LONG, "x", **fields)
    assert shared(one, other) == len(blocks(one)) > 0


def test_equal_tools_are_shared_before_messages_differ():
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "description": "d" * 90}}
        for number in range(40)
    ]
    assert shared(said("one" * 400, tools=tools), said("two" * 400, tools=tools)) >= 4


@given(cut=st.integers(0, len(LONG)))
def test_blocks_are_equal_just_as_far_as_the_bytes_are(cut):
    one, other = body(prompt=LONG), body(prompt=LONG[:cut] + "#" + LONG[cut + 1 :])
    assert shared(one, other) == (cut + 1) // BLOCK_BYTES  # the opening quotation mark is one byte


def test_tokens_are_a_quarter_of_the_bytes():
    request = body(prompt="x" * 40_000)
    found = read(request, len(request))
    assert abs(found.tokens - 10_000) < 5
    assert len(found.blocks) == found.tokens // BLOCK_TOKENS


def test_only_the_first_bytes_of_a_buffer_count():
    request = said(LONG, "x")
    buffer = bytearray(request + b"\0" * 5000)
    assert read(buffer, len(request)) == read(request, len(request))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"no json", b"[1, 2]", b'"text"', b"\xff\xfe", b"--boundary\r\n"]
)
def test_what_is_no_request_has_no_blocks(text):
    assert read(text, len(text)) == prompt.Prompt([], len(text) // 4)


def test_a_huge_prompt_has_so_many_blocks_and_no_more():
    request = body(prompt="y" * (3 * MOST_BLOCKS * BLOCK_BYTES))
    found = read(request, len(request))
    assert len(found.blocks) == MOST_BLOCKS
    assert found.tokens > 2 * MOST_BLOCKS * BLOCK_TOKENS


def image(seed, size=400_000):
    return "data:image/png;base64," + "".join(
        chr(65 + (seed * number * 7919) % 26) for number in range(1, 500)
    ) * (size // 499)


def seen(picture, question="What is it? " * 100):
    content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": question}]
    return body(messages=[{"role": "user", "content": content}])


def test_an_image_stands_for_itself_and_not_for_a_hundred_thousand_tokens():
    one, other = seen(image(3)), seen(image(5))
    assert read(one, len(one)).tokens < 2000
    assert shared(one, one) == len(blocks(one)) >= 4
    assert shared(one, other) == 0
    assert shared(one, seen(image(3), "And here? " * 100)) >= 3


def test_images_of_one_size_that_differ_in_the_middle_differ():
    """By chance in at most what lies between the samples: an encoder changes everything behind the first difference."""
    one = image(3)
    half = len(one) // 2
    assert shared(seen(one), seen(one[:half] + image(5)[half:])) == 0


def test_a_small_image_and_an_unfinished_one_are_text():
    small = seen("data:image/png;base64,QUJD")
    assert blocks(small)
    cut = seen(image(3))[:200_000]
    assert read(cut, len(cut)).blocks == []
