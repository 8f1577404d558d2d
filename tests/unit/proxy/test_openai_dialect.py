"""The peek at a request, the paths that exist, errors in OpenAI's shape, keys."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.auth import Directory, forbid
from gpufleet.proxy.wire import refusal
from gpufleet.proxy.wire.openai import BodyUnreadable, Peek, models_page, peek, stream_error
from gpufleet.proxy.wire.paths import RELAYED, Service, classify
from gpufleet.tokens.model import ANONYMOUS, Principal, Token, digest

JSON = b"application/json"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"m","stream":true,"messages":[{"role":"user"}]}', Peek(model="m", stream=True)),
        (b'{"messages":[],"model":"a","model":"b"}', Peek(model="b")),  # as the engine reads it: the last one
        (b'{"stream":null}', Peek()),
        (b"", Peek()),
    ],
)
def test_peek(body, expected):
    assert peek(body, JSON) == expected


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"model":3}', b"\xff\xfe", b'{"model":"m"} x', b"[" * 100_000]
)
def test_a_body_that_is_no_request_is_said_to_be_none(body):
    with pytest.raises(BodyUnreadable):
        peek(body, JSON)


@given(st.binary(max_size=200))
def test_peek_reads_or_refuses_any_bytes(noise):
    for content_type in (JSON, b"multipart/form-data; boundary=x", b"multipart/form-data", b""):
        try:
            peek(noise, content_type)
            peek(b"--x\r\n" + noise + b"\r\n--x--", content_type)
        except BodyUnreadable:
            pass


def upload(*parts, boundary=b"b1"):
    """A multipart body of (disposition, content)."""
    lines = (b"--%s\r\nContent-Disposition: form-data%s\r\n\r\n%s\r\n" % (boundary, *part) for part in parts)
    return b"".join(lines) + b"--%s--\r\n" % boundary


MODEL = (b'; name="model"', b"mine")
FILE = (b'; name="file"; filename="a.wav"', b"RIFF")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (b"multipart/form-data; boundary=b1", upload(MODEL, FILE, (b'; name="model"', b"other"))),
        (b"multipart/form-data; boundary=b1", upload(MODEL, (b"; name=model", b"other"))),
        (b"multipart/form-data; boundary=b1", upload((b'; name="model"', b"m" * 600))),
        (b"multipart/form-data; boundary=b1", upload((b'; name="a"; name="model"', b"other"))),
        (b"multipart/form-data; boundary=b1", upload((b'; name="fi\r\nle"', b""))),
        (b"multipart/form-data; boundary=b1", b"--b1\r\nX: y\r\n\r\nz\r\n--b1--"),
        (b"multipart/form-data; boundary=b1", b"--b1\r\nno end of a head\r\n--b1--"),
        (b"multipart/form-data; boundary=b1", upload(*[FILE] * 1001)),
        (b"multipart/form-data; boundary=b1; boundary=b2", upload(MODEL)),
        (b"multipart/form-data; xboundary=b1", upload(MODEL)),
    ],
)
def test_an_upload_that_an_engine_may_read_otherwise_is_refused(content_type, body):
    with pytest.raises(BodyUnreadable):
        peek(body, content_type)


def test_a_file_name_does_not_become_a_model():
    names = (b"a; name=model", b'a\\"; name=\\"model', b"\xc3\xa4 model.wav")
    for name in names:
        part = (b'; filename="%s"; name="file"' % name, b"other")
        assert peek(upload(part, MODEL), b"multipart/form-data; boundary=b1").model == "mine"


def test_peek_finds_the_model_of_an_upload():
    body = (
        b'--b1\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n\x00\x01name="model"\r\n'
        b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--b1\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--b1--\r\n'
    )
    for content_type in (b"multipart/form-data; boundary=b1", b'Multipart/Form-Data; boundary="b1"'):
        assert peek(body, content_type) == Peek(model="whisper", stream=True)


def test_paths():
    assert classify("/v1/chat/completions").service is Service.RELAY
    for prefix in ("/pools/chat", "/api/internal/gpu-pool/chat"):
        place = classify(f"{prefix}/v1/chat/completions")
        assert (place.pool, place.path, place.service) == ("chat", "/v1/chat/completions", Service.RELAY)
    assert classify("/v1/models").service is Service.MODELS
    assert classify("/v1/realtime").service is Service.NOT_YET
    assert classify("/v1/responses/resp_1/cancel").method == "POST"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/invocations",
        "/metrics",
        "/health",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/../load_lora_adapter",
        "/v1/chat/%63ompletions",
        "/pools/chat/metrics",
        "/pools//v1/models",
        "/pools/a/pools/b/v1/chat/completions",
        "/",
    ],
)
def test_what_is_not_named_does_not_exist(path):
    assert classify(path).service is Service.UNKNOWN


def test_no_admin_path_of_an_engine_is_on_the_list():
    words = ("lora", "sleep", "wake", "cache", "rpc", "pause", "abort", "weight", "metrics", "health")
    assert not [path for path in RELAYED if any(word in path for word in words)]


def test_errors_have_openais_shape():
    body = json.loads(refusal.no_healthy_members().body())
    assert body == {
        "error": {
            "message": "Pool has no healthy members",
            "type": "service_unavailable",
            "param": None,
            "code": 503,
        }
    }
    assert refusal.no_healthy_members().retry_after


def test_each_dialect_gets_its_own_stream_error_and_no_end_mark():
    broken = refusal.upstream_failed("upstream connection lost")
    for path, word in (
        ("/v1/chat/completions", b'"code":502'),
        ("/v1/messages", b"event: error"),
        ("/v1/responses", b"response.failed"),
    ):
        event = stream_error(path, broken)
        assert word in event
        assert event.startswith(b"\n\n")
        assert event.endswith(b"\n\n")
        assert b"[DONE]" not in event


def test_models_stand_once():
    page = json.loads(models_page(["a", "b", "a"], 7))
    assert [card["id"] for card in page["data"]] == ["a", "b"]


def directory(*, anonymous=False, **fields):
    principal = Principal(name="p", models=frozenset({"m"}))
    token = Token(
        id="1", digest=digest(b"gf-good"), hint="good", principal=principal, created_at=0.0, **fields
    )
    return Directory({token.digest: token}, anonymous=anonymous)


def test_a_good_key_is_its_principal():
    for fields in (
        {b"authorization": b"Bearer gf-good"},
        {b"authorization": b"bearer  gf-good"},
        {b"x-api-key": b"gf-good"},
    ):
        found = directory().identify(fields, 1.0)
        assert isinstance(found, Principal)
        assert found.name == "p"
        assert forbid(found, "m") is None
        refused = forbid(found, "other")
        assert refused is not None
        assert refused.status == 403


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"authorization": b"Bearer gf-bad"},
        {b"authorization": b"Basic gf-good"},
        {b"authorization": b"Bearer "},
    ],
)
def test_no_or_a_wrong_key_is_401(fields):
    found = directory().identify(fields, 1.0)
    assert isinstance(found, refusal.Refusal)
    assert found.status == 401
    assert directory(anonymous=True).identify(fields, 1.0) is ANONYMOUS


def test_an_expired_or_revoked_key_is_401_even_where_no_key_is_needed():
    fields = {b"authorization": b"Bearer gf-good"}
    for ended in (directory(expires_at=5.0, anonymous=True), directory(revoked_at=1.0, anonymous=True)):
        assert isinstance(ended.identify(fields, 6.0), refusal.Refusal)
    assert isinstance(directory(expires_at=5.0).identify(fields, 4.9), Principal)
