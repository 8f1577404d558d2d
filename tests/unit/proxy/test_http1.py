"""Bytes to events: strict heads, bodies that end where they end, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.proxy.wire.chunked import ChunkFollower, ProtocolError
from gpufleet.proxy.wire.heads import (
    Framing,
    HeadMemory,
    parse_request_head,
    parse_response_head,
    write_request_head,
)
from gpufleet.proxy.wire.http1 import RequestReader, ResponseReader

LIMIT = 4096
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"


def events(pieces):
    """What a reader says of these pieces: heads and bodies, then perhaps the status of a refusal."""
    reader = RequestReader(LIMIT)
    found: list[object] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := reader.next_event()) is not None:
                found.append(event if isinstance(event, bytes) else (event.method, event.target, event.kept))
    except ProtocolError as error:
        found.append(error.status)
    return found


def cut(content, points):
    edges = [0, *sorted(point % (len(content) + 1) for point in points), len(content)]
    return [content[start:end] for start, end in pairwise(edges)]


REQUESTS = [
    CHAT + b"Content-Length: 5\r\n\r\nhello",
    CHAT + b"Content-Length: 5\r\n\r\nhello" + CHAT + b"Content-Length: 2\r\n\r\nok",
    CHAT + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n",
    b"\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models HTTP/1.0\r\n\r\n",
    CHAT + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    CHAT + b"Content-Length: 5000\r\n\r\n",
    CHAT + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX",
    b"GET / HTTP/1.1\nHost: a\n\n",
]


@given(which=st.sampled_from(REQUESTS), points=st.lists(st.integers(0, 400), max_size=8))
def test_any_cut_gives_the_same_events(which, points):
    assert events(cut(which, points)) == events([which])


def short_way(content):
    """What `whole` says of these bytes, as `events` would; None when it leaves them to the long way."""
    try:
        whole = RequestReader(LIMIT).whole(content)
    except ProtocolError as error:
        return [error.status]
    return None if whole is None else [(whole[0].method, whole[0].target, whole[0].kept), whole[1]]


@pytest.mark.parametrize(
    "content",
    [CHAT + b"Content-Length: 5\r\n\r\nhello", b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"],
)
def test_a_request_in_one_piece_takes_the_short_way(content):
    assert short_way(content) == events([content])


@pytest.mark.parametrize(
    "content",
    [
        *(request for request in REQUESTS[1:4]),
        CHAT + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000,
        CHAT + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        CHAT + b"Content-Length: 5\r\n\r\nhell",
        CHAT + b"Content-Length: 5\r\n\r\nhello!",
    ],
)
def test_what_is_more_or_less_than_one_request_takes_the_long_way(content):
    assert short_way(content) is None


@given(which=st.sampled_from(REQUESTS), start=st.integers(0, 80), noise=st.binary(max_size=6))
def test_both_ways_say_the_same(which, start, noise):
    content = which[:start] + noise + which[start:]
    short = short_way(content)
    assert short is None or short == events([content])


def test_the_short_way_is_closed_while_another_request_is_here():
    reader = RequestReader(LIMIT)
    reader.feed(CHAT)
    assert reader.whole(b"Content-Length: 5\r\n\r\nhello") is None
    assert reader.next_event() is None
    reader.feed(b"Content-Length: 5\r\n\r\n")
    assert reader.next_event() is not None
    assert reader.whole(REQUESTS[0]) is None


@pytest.mark.parametrize("content", REQUESTS)
def test_byte_by_byte_gives_the_same_events(content):
    assert events([content[i : i + 1] for i in range(len(content))]) == events([content])


def test_two_requests_come_out_in_order():
    found = events([REQUESTS[1]])
    assert [event for event in found if isinstance(event, bytes)] == [b"hello", b"ok"]


@pytest.mark.parametrize(
    "head",
    [
        CHAT + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        CHAT + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        CHAT + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
        CHAT + b"Content-Length: 3, 3\r\n\r\n",
        CHAT + b"Content-Length: +3\r\n\r\n",
        CHAT + b"Content-Length: 0x3\r\n\r\n",
        CHAT + b"Content-Length: 3_0\r\n\r\n",
        CHAT + b"Content-Length : 3\r\n\r\n",
        CHAT + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        CHAT + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
        CHAT + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        CHAT + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
        CHAT + b"X: a\r\n  folded\r\n\r\n",
        CHAT + b" X: a\r\n\r\n",
        CHAT + b"X: a\nY: b\r\n\r\n",
        CHAT + b"X: a\rb\r\n\r\n",
        CHAT + b"X: a\x00b\r\n\r\n",
        CHAT + b": nameless\r\n\r\n",
        CHAT + b"Host: b\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\n\r\n",
        b"POST  /v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST http://evil/v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/x HTTP/2.0\r\nHost: a\r\n\r\n",
        b"POST /v1/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"post /v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_a_head_that_two_parsers_could_read_differently_is_refused(head):
    with pytest.raises(ProtocolError) as refused:
        parse_request_head(head)
    assert refused.value.status == 400


def test_an_unknown_expectation_is_417():
    with pytest.raises(ProtocolError) as refused:
        parse_request_head(CHAT + b"Expect: a miracle\r\n\r\n")
    assert refused.value.status == 417


@pytest.mark.parametrize(
    "framing",
    [
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\nx\r\n",
        b"0x1\r\nx\r\n",
        b"1_0\r\n",
        b" 1\r\nx\r\n",
        b"1\nx\n",
        b"1\r\nxy\r\n",
        b"\r\n",
        b"1\r\nx\n\r\n",
        b"f" * 16 + b"\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"1;" + b"x" * 2000 + b"\r\n",
    ],
)
def test_bad_chunks_are_refused_however_they_are_cut(framing):
    for pieces in ([framing], [framing[i : i + 1] for i in range(len(framing))]):
        follower = ChunkFollower()
        with pytest.raises(ProtocolError):
            list(map(follower.feed, pieces))


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.binary(max_size=10),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_a_chunked_body_is_followed_to_its_last_byte(contents, behind, points):
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in contents if part) + b"0\r\n\r\n"
    follower, taken = ChunkFollower(), 0
    payload: list[bytes] = []
    for piece in cut(body + behind, points):
        used = follower.feed(piece, payload)
        taken += used
        if used < len(piece):
            break
    assert follower.complete
    assert taken == len(body)
    assert b"".join(payload) == b"".join(contents)


WHOLE_CHUNKS = [b"5\r\nhello\r\n", b"1;x=y\r\n\n\r\n", b"0a\r\n0\r\n\r\n1\r\nab\r\n"]


@pytest.mark.parametrize("piece", WHOLE_CHUNKS)
def test_a_piece_that_is_one_chunk_passes(piece):
    assert ChunkFollower().passes(piece)


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b"0\r\n\r\n",
        b"5\r\nhello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"6\r\nhello\r\n",
        b"4\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5;" + b"x" * 5000 + b"\r\nhello\r\n",
    ],
)
def test_a_piece_that_is_more_or_less_than_one_chunk_does_not_pass(piece):
    assert not ChunkFollower().passes(piece)


@given(which=st.sampled_from(WHOLE_CHUNKS), start=st.integers(0, 24), noise=st.binary(max_size=4))
def test_what_passes_is_what_would_be_followed_to_its_end(which, start, noise):
    piece = which[:start] + noise + which[start:]
    passing, following = ChunkFollower(), ChunkFollower()
    if passing.passes(piece):
        assert following.feed(piece) == len(piece)
        assert (following.gap, following.complete) == (passing.gap, passing.complete) == (0, False)


def test_nothing_passes_in_the_middle_of_a_chunk():
    follower = ChunkFollower()
    follower.feed(b"20\r\n")
    assert not follower.passes(WHOLE_CHUNKS[0])


def test_a_head_without_end_is_refused_before_it_fills_the_memory():
    reader = RequestReader(LIMIT)

    def feed(piece):
        reader.feed(piece)
        reader.next_event()

    with pytest.raises(ProtocolError) as refused:
        list(map(feed, [b"GET / HTTP/1.1\r\n", *[b"X: " + b"y" * 1000 + b"\r\n"] * 100]))
    assert refused.value.status == 431
    assert reader.buffered < 70_000


@pytest.mark.parametrize(
    "request_",
    [
        CHAT + b"Content-Length: 4097\r\n\r\n",
        CHAT + b"Transfer-Encoding: chunked\r\n\r\n1001\r\n" + b"x" * 4097,
    ],
)
def test_a_body_past_the_limit_is_413(request_):
    assert events([request_])[-1] == 413


@given(st.binary(max_size=300))
@example(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999999\r\n\r\n")
def test_any_bytes_give_events_or_a_protocol_error(noise):
    events([noise])
    events([CHAT + noise])
    events([CHAT + b"Transfer-Encoding: chunked\r\n\r\n" + noise])
    reader = ResponseReader()
    try:
        found = reader.head(b"HTTP/1.1 200 OK\r\n" + noise)
        if found is not None:
            reader.follow(found[1])
    except ProtocolError:
        pass


fragments = st.lists(
    st.sampled_from(
        [
            b"POST /v1/chat/completions HTTP/1.1\r\n",
            b"Host: a\r\n",
            b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close, x\r\n",
            b"X: y\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b"abc",
            b"3\r\n",
            b"0\r\n",
            b" ",
            b"\x00",
        ]
    ),
    max_size=14,
).map(b"".join)


@example(content=b"\r\n\r\n", points=[2])
@given(content=fragments, points=st.lists(st.integers(0, 300), max_size=5))
def test_shuffled_http_gives_the_same_events_or_error_for_any_cut(content, points):
    assert events(cut(content, points)) == events([content])


def test_hop_by_hop_fields_stay_here():
    head = parse_request_head(
        b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\nConnection: X-Private, keep-alive\r\nX-Private: 1\r\n"
        b"Keep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nProxy-Authorization: x\r\nAuthorization: Bearer gf-secret\r\n"
        b"X-Api-Key: other\r\nx-gpufleet-endpoint: forged\r\nAccept: */*\r\nContent-Type: application/json\r\n"
        b"Trailer: X\r\nProxy-Connection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    )
    assert head.kept == b"Accept: */*\r\ncontent-type: application/json\r\n"
    assert head.expects_continue
    assert head.persistent
    written = write_request_head(head, b"/v1/completions", fields=b"Host: engine:1\r\n", length=2)
    assert written == (
        b"POST /v1/completions HTTP/1.1\r\nAccept: */*\r\ncontent-type: application/json\r\n"
        b"Host: engine:1\r\nContent-Length: 2\r\n\r\n"
    )
    assert parse_request_head(written).kept == head.kept


@given(
    fields=st.lists(
        st.tuples(
            st.text("abcXYZ-", min_size=1, max_size=8).map(lambda name: "N" + name),
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
        ),
        max_size=6,
    )
)
def test_fields_that_are_not_ours_travel_on_unchanged(fields):
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields).encode()
    assert parse_request_head(CHAT + lines + b"\r\n").kept == lines


@pytest.mark.parametrize(
    ("head", "framing", "persistent"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Framing.LENGTH, True),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", Framing.CHUNKED, True),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            Framing.CHUNKED,
            False,
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n", Framing.CLOSE, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", Framing.LENGTH, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", Framing.LENGTH, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Framing.NONE, True),
    ],
)
def test_how_a_response_is_framed(head, framing, persistent):
    parsed = parse_response_head(head)
    assert (parsed.framing, parsed.persistent) == (framing, persistent)
    assert b"ontent-" not in parsed.kept
    assert b"ransfer-" not in parsed.kept


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    ],
)
def test_a_lying_response_head_is_502(head):
    with pytest.raises(ProtocolError) as refused:
        parse_response_head(head)
    assert refused.value.status == 502


@given(
    bodies=st.lists(st.sampled_from([b"", b"x", b"hello", b"y" * 300]), min_size=1, max_size=5),
    lines=st.lists(
        st.sampled_from(
            [b"", b"X: 1\r\n", b"X: 2\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
        ),
        min_size=5,
        max_size=5,
    ),
)
def test_a_remembered_head_reads_as_a_new_one(bodies, lines):
    """The same connection or a new one for each request: the same events, and the same refusals."""
    requests = [
        CHAT + b"Content-Length: %d\r\n%s\r\n%s" % (len(body), line, body)
        for body, line in zip(bodies, lines, strict=False)
    ]
    apart: list[object] = []
    for request in requests:
        apart += events([request])
        if isinstance(apart[-1], int):
            break
    assert events([b"".join(requests)]) == apart
    asked, answered, lengths = HeadMemory(), HeadMemory(), []
    for body in bodies:
        lengths.append(asked.request(CHAT + b"Content-Length: %d\r\n\r\n" % len(body)).length)
        answer = answered.response(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert (answer.length, answer.framing) == (len(body), Framing.LENGTH)
    assert lengths == [len(body) for body in bodies]


def test_interim_answers_are_dropped():
    reader = ResponseReader()
    found = reader.head(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n"
    )
    assert found is None
    found = reader.head(b"Content-Length: 2\r\n\r\nok")
    assert found is not None
    assert found[0].status == 200
    assert reader.follow(found[1]) == 2
    assert reader.complete


def test_content_encoding_is_end_to_end():
    head = parse_response_head(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n")
    assert head.kept == b"Content-Encoding: gzip\r\n"


def test_bytes_behind_the_answer_are_not_part_of_it():
    reader = ResponseReader()
    found = reader.head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n")
    assert found is not None
    assert reader.follow(found[1]) == 2
    assert reader.complete
    assert reader.overrun
