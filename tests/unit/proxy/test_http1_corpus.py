"""Hundreds of malformed and borderline messages: each has one right answer, however its bytes are cut."""

from __future__ import annotations

import os
import random
import re
from itertools import pairwise

import pytest

from tests.kit.http1_table import Row, read_requests, read_response, requests, responses, single

REQUESTS, RESPONSES = requests(), responses()


def thirds(message: bytes) -> list[bytes]:
    """In pieces of three bytes, so that CRLF and size lines are cut in the middle."""
    return [message[i : i + 3] for i in range(0, len(message), 3)]


def test_there_are_hundreds_and_none_stands_twice():
    assert len(REQUESTS) + len(RESPONSES) >= 300
    for rows in (REQUESTS, RESPONSES):
        assert len({row.message for row in rows}) == len(rows)


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: row.name)
def test_a_request_has_its_answer(row: Row):
    assert read_requests([row.message]) == row.answer
    assert read_requests(single(row.message)) == row.answer
    assert read_requests(thirds(row.message)) == row.answer


@pytest.mark.parametrize("row", RESPONSES, ids=lambda row: row.name)
def test_an_answer_of_an_engine_has_its_meaning(row: Row):
    assert read_response([row.message]) == row.answer
    assert read_response(single(row.message)) == row.answer
    assert read_response(thirds(row.message)) == row.answer


def test_a_good_request_before_a_bad_one_is_still_answered():
    dice = random.Random(20)
    first = next(row for row in REQUESTS if row.answer == "+hello")
    for row in dice.sample(REQUESTS, 200):
        assert read_requests([first.message + row.message]) == f"+hello {row.answer}".strip()


TOKENS = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"5", b"x", b"\xff", b"\r\n\r\n"),
    *(b"0\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: a\r\n", b"chunked"),
    *(b"Connection: close\r\n", b"HTTP/1.1", b"HTTP/1.0", b"GET / HTTP/1.1\r\n", b"HTTP/1.1 100 x\r\n\r\n"),
    *(b"5\r\nhello\r\n", b"ffffffff\r\n", b"Expect: 100-continue\r\n", b" folded\r\n"),
]
FUZZED = {"deep": 1_000_000}.get(os.environ.get("HYPOTHESIS_PROFILE", "dev"), 50_000)


def mutated(dice: random.Random, corpus: list[bytes]) -> bytes:
    """A message of the tables, or two of them, with up to four changes."""
    message = bytearray(dice.choice(corpus))
    if dice.random() < 0.3:
        message += dice.choice(corpus)
    for _ in range(dice.randint(0, 4)):
        place = dice.randint(0, len(message))
        kind = dice.randrange(5)
        if kind == 0:
            message[place:place] = dice.choice(TOKENS)
        elif kind == 1:
            del message[place : place + dice.randint(1, 8)]
        elif kind == 2:
            message[place : place + 1] = bytes((dice.randrange(256),))
        elif kind == 3:
            message[place:place] = message[dice.randint(0, place) : place]
        else:
            del message[place:]
    return bytes(message[:600])


def cut(dice: random.Random, message: bytes) -> list[bytes]:
    """Into a few pieces anywhere."""
    edges = sorted({0, len(message), *(dice.randint(0, len(message)) for _ in range(4))})
    return [message[start:end] for start, end in pairwise(edges)]


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize(
    ("rows", "read", "answer"),
    [
        (REQUESTS, read_requests, r"(>|\+\S*)?( (>|\+\S*))*( ?(\?|400|413|417|431))?"),
        (RESPONSES, read_response, r"502|\?|[2-5]\d\d:[ -~]*:(keep|close|open|bad)"),
    ],
    ids=["requests", "responses"],
)
def test_whatever_arrives_is_read_in_one_way_or_refused(rows, read, answer):
    """50,000 messages, a million in the deep profile: a right event or an error, and cuts change nothing."""
    seed = int(os.environ.get("GPUFLEET_FUZZ_SEED", "5"))
    dice = random.Random(seed)
    corpus = [row.message for row in rows if len(row.message) <= 400]
    right = re.compile(answer)
    refused = 0
    for number in range(FUZZED // 2):
        message = mutated(dice, corpus)
        said = read([message])
        assert right.fullmatch(said), (seed, number, message, said)
        assert read(single(message)) == said, (seed, number, message, said)
        assert read(cut(dice, message)) == said, (seed, number, message, said)
        refused += said[-3:] in {"400", "413", "417", "431", "502"}
    assert FUZZED // 10 < refused < FUZZED // 2  # of both kinds there are plenty
