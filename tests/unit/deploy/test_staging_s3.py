"""Signed addresses, listings and refusals of S3."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.deploy.staging import ask, s3
from gpufleet.deploy.staging.model import Kind, Source, WeightFile
from gpufleet.redact import Secret

NOW = datetime(2013, 5, 24, tzinfo=UTC)
EXAMPLE = s3.Keys(access="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def test_the_signature_is_the_one_of_the_published_example():
    """AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)", the worked example."""
    url = s3.signed("https://examplebucket.s3.amazonaws.com/test.txt", EXAMPLE, "us-east-1", NOW, valid=86400)
    assert parse_qs(urlsplit(url).query)["X-Amz-Signature"] == [
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    ]


def test_without_keys_an_address_stays_as_it_is():
    assert s3.signed("https://h/b/k?x=1", s3.Keys(), "r", NOW) == "https://h/b/k?x=1"


def source(**more: object) -> Source:
    fields: dict[str, object] = {
        "kind": Kind.S3,
        "model": "b/p",
        "place": "b/p",
        "endpoint": "http://s3.local:9000",
        "access_key": Secret("AK", reference="${env:AK}"),
        "secret_key": Secret("SK", reference="${file:sk}"),
    }
    return Source(**{**fields, **more})  # type: ignore[arg-type]  # fields by name


@given(
    st.text(
        st.characters(min_codepoint=32, exclude_characters="\x7f", codec="utf-8"), min_size=1, max_size=40
    )
)
def test_a_journalled_address_is_signed_anew_from_its_reference(key: str):
    reference = s3.reference(source(), key)
    assert s3.REFERENCE.fullmatch(reference)
    assert "secret=%24%7Bfile%3Ask%7D" in reference
    values = {"${env:AK}": "AK", "${file:sk}": "SK"}
    again = ask.sign_again(reference, lambda text: Secret(values[text], reference=text), NOW)
    keys = s3.Keys(access="AK", secret="SK")
    assert again.reveal() == s3.signed(s3.bucket_of(source()).url(key), keys, "us-east-1", NOW)
    assert again.reference == reference


PAGE = b"""<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<NextContinuationToken>next</NextContinuationToken>
<Contents><Key>p/a.json</Key><Size>3</Size><ETag>"abc"</ETag></Contents>
<Contents><Key>p/</Key><Size>0</Size></Contents></ListBucketResult>"""


def test_a_page_of_a_listing_is_read():
    assert s3.page_of(PAGE) == s3.Page((("p/a.json", 3, "abc"), ("p/", 0, "")), "next")
    assert s3.below("p/a.json", "p/") == "a.json"
    assert [s3.below(key, "p/") for key in ("p/", "q/a", "p/../x", "p/a\\b", "p/.gpufleet-manifest")] == [
        ""
    ] * 5


@pytest.mark.parametrize(
    "body", [b"", b"<html/>", b"<a>", b'<!DOCTYPE x [<!ENTITY a "b">]><ListBucketResult/>']
)
def test_what_is_no_listing_is_none(body: bytes):
    assert s3.page_of(body) is None


def test_a_checksum_over_parts_is_not_one_of_the_file():
    digest = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
    assert s3.check_of({"x-amz-checksum-sha256": digest}) == (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
    assert not s3.check_of({"x-amz-checksum-sha256": f"{digest}-3"})
    assert not s3.check_of({"x-amz-meta-sha256": "nonsense"})
    assert s3.sums_of(f"{'a' * 64}  ./x y\nnonsense\n{'b' * 64} *z\n") == {
        "x y": f"sha256:{'a' * 64}",
        "z": f"sha256:{'b' * 64}",
    }


def test_other_objects_are_another_revision():
    one = (WeightFile(path="a", size=1),)
    assert s3.revision_of(one, {"a": "x"}) != s3.revision_of(one, {"a": "y"})


@pytest.mark.parametrize(
    ("status", "body", "keys", "code"),
    [
        (404, b"<Code>NoSuchBucket</Code>", True, "weights-missing"),
        (403, b"<Code>SignatureDoesNotMatch</Code>", True, "weights-unauthorized"),
        (403, b"<Code>AccessDenied</Code>", True, "weights-forbidden"),
        (403, b"<Code>AccessDenied</Code>", False, "weights-unauthorized"),
        (503, b"", True, "weights-unreachable"),
    ],
)
def test_refusals_are_told_apart(status: int, body: bytes, keys: bool, code: str):
    found = source() if keys else source(access_key=None, secret_key=None)
    error = s3.refusal(found, status, body)
    assert (error.code, error.exit, bool(error.hints)) == (code, 8, True)
