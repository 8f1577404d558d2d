"""A large JSON request is read without its long strings, and says the same as the whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.wire.openai import BodyUnreadable, peek
from gpufleet.proxy.wire.skim import HOPS, LONG, SKIMMED_FROM, skim

JSON = b"application/json"
IMAGE = "data:image/png;base64," + "A" * SKIMMED_FROM
TEXTS = st.lists(st.sampled_from(["\\", '"', "\n", "é", "a", "\\\\", "b" * 70, "c" * LONG]), max_size=8).map(
    "".join
)


@given(texts=st.lists(TEXTS, max_size=6), key=TEXTS, image=st.integers(0, 3), ascii_=st.booleans())
def test_the_peek_is_the_same_with_and_without_the_long_strings(texts, key, image, ascii_):
    messages = [{"role": "user", "content": text} for text in texts]
    messages.insert(min(image, len(messages)), {"role": "user", "content": IMAGE})
    wanted = {key: 1, "messages": messages, "model": "m", "tail": texts, "stream": True}
    text = json.dumps(wanted, ensure_ascii=ascii_).encode()
    buffer = bytearray(text + b'"model":"other" left from the last request"')
    assert (peek(buffer, JSON, len(text)).model, peek(text, JSON).stream) == ("m", True)
    assert len(skim(text, len(text))) < len(text) - SKIMMED_FROM // 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","x":"' + b"a" * SKIMMED_FROM,
        b'{"model":"m","x":"' + b"a" * SKIMMED_FROM + b'"',
        b'{"model":"m","x":"' + b"a" * SKIMMED_FROM + b'" "y"}',
        b'{"model":"' + b"a" * SKIMMED_FROM + b'"}',
        b'{"model":"' + b"\\" * SKIMMED_FROM + b'"',
        b'"' * SKIMMED_FROM,
        b"[" * SKIMMED_FROM,
    ],
)
def test_what_is_not_a_request_is_still_refused(body):
    with pytest.raises(BodyUnreadable):
        peek(body, JSON)


def test_a_model_behind_very_many_strings_is_found():
    text = json.dumps({"a": ["x"] * HOPS, "image": IMAGE, "model": "m"}).encode()
    assert peek(text, JSON).model == "m"


@pytest.mark.parametrize("start", [b"", b"\\\\", b'\\"'])
def test_a_duplicate_behind_an_image_wins_as_it_does_for_the_engine(start):
    body = b'{"model":"a","x":"' + start + IMAGE.encode() + b'\\\\","mod\\u0065l":"b"}'
    assert json.loads(body)["model"] == "b"
    assert peek(body, JSON).model == "b"
