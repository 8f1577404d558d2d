"""Weights from moto's S3 over real HTTP, fetched by a real curl in a real shell."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from gpufleet.clock import SystemClock
from gpufleet.deploy.staging import ask, commands, s3
from gpufleet.deploy.staging.model import Kind, Source
from gpufleet.errors import PreflightFailed
from gpufleet.redact import Secret
from gpufleet.remote.framing import frame, unframe

pytestmark = pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="moto is not installed")

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
KEYS = s3.Keys(access="AKIDEXAMPLE", secret="averysecretsecretkey")
FILES = {"config.json": b"{}", "model 1.safetensors": bytes(range(256)) * 500, "sub/tokenizer.json": b"[1]"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        put(url, "models", "")
        for name, content in FILES.items():
            put(url, "models", f"qwen/{name}", content)
        sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
        put(url, "models", "summed/SHA256SUMS", sums.encode())
        for name, content in FILES.items():
            put(url, "models", f"summed/{name}", content)
        yield url
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait(30)


def put(url: str, bucket: str, key: str, content: bytes = b"") -> None:
    place = s3.Bucket(name=bucket, endpoint=url).url(key)
    signed = s3.signed(place, KEYS, "us-east-1", now(), method="PUT")
    answer = httpx.put(
        signed, content=content, headers={"content-type": "application/octet-stream"}, timeout=60
    )
    assert answer.status_code == 200, answer.text


def now() -> datetime:
    return SystemClock().now()


def source(url: str, place: str) -> Source:
    return Source(
        kind=Kind.S3,
        model=place,
        place=place,
        endpoint=url,
        access_key=Secret(KEYS.access, reference="${env:AWS_ACCESS_KEY_ID}"),
        secret_key=Secret(KEYS.secret, reference="${env:AWS_SECRET_ACCESS_KEY}"),
    )


@pytest.mark.parametrize("place", ["models/qwen", "models/summed"])
def test_a_prefix_of_a_bucket_arrives_whole_and_hosts_get_no_key(tmp_path: Path, endpoint: str, place: str):
    with ask.asker() as questions:
        listing = ask.listing(source(endpoint, place), questions, now())
    assert [(one.path, one.size) for one in listing.files] == [
        (name, len(FILES[name])) for name in sorted(FILES)
    ]
    assert listing.unchecked == (0 if place == "models/summed" else 3)
    final = tmp_path / listing.name
    command = commands.fetch(str(final), "run-1", ask.fetches(listing, now()))
    text = frame(command, "marker")
    assert KEYS.secret.encode() not in text
    ended = subprocess.run(
        ["/bin/sh", "-s"],
        input=text,
        capture_output=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        timeout=100,
        check=False,
    )
    answer = unframe(ended.stdout, ended.stderr, "marker").exit
    assert answer is not None
    assert (answer.code, answer.stderr) == (0, "")
    assert {name: (final / name).read_bytes() for name in FILES} == FILES


def test_a_bucket_or_prefix_that_is_not_there_is_missing(endpoint: str):
    for place in ("nowhere/qwen", "models/nothing"):
        with ask.asker() as questions, pytest.raises(PreflightFailed) as refused:
            ask.listing(source(endpoint, place), questions, now())
        assert (refused.value.code, refused.value.exit) == ("weights-missing", 8)
