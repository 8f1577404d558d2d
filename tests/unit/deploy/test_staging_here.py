"""A directory on this machine: what is in it, and how its bytes come to a store over a real shell."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

import pytest

from gpufleet.deploy.staging import commands, here
from gpufleet.deploy.staging.hub import SourceMissing, SourceUnreachable
from gpufleet.deploy.staging.model import Kind, Source
from gpufleet.deploy.staging.settled import SourceMoving, unfinished
from gpufleet.names import HostName
from gpufleet.remote.local import LocalTransport
from gpufleet.remote.result import Exit
from gpufleet.remote.target import Target
from gpufleet.remote.transport import Session

FILES = {
    "config.json": b"{}",
    "model-1.safetensors": bytes(range(256)) * 3000,
    "sub/a b'c.json": b"[]",
    "empty.txt": b"",
    "model.gguf": b"the same once more",
    ".cache/huggingface/x.lock": b"",
}
STAGED = ["config.json", "empty.txt", "model-1.safetensors", "sub/a b'c.json"]


NOW = datetime(2100, 1, 1, tzinfo=UTC)


def source(place: Path, **more: object) -> Source:
    return Source(kind=Kind.HERE, model=place.name, place=str(place), **more)  # type: ignore[arg-type]  # by name


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    top = tmp_path / "qwen"
    for name, content in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    return top


def opened() -> Session:
    """This machine's own shell as a host."""
    name = HostName("here")
    return LocalTransport({name: Target(name=name, host="localhost")}).open(name)


def fetched(top: Path, final: Path, **more: object) -> Exit:
    """What the host's command answers, over this machine's own shell."""
    fetches = here.fetches(here.listing(source(top), NOW))
    session = opened()
    answer = session.run(commands.fetch(str(final), "run-1", fetches, **more))  # type: ignore[arg-type]  # by name
    assert isinstance(answer, Exit), answer
    return answer


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and one.name != ".gpufleet-manifest"
    }


def test_every_file_is_listed_with_its_checksum_and_hidden_ones_are_not(weights: Path):
    found = here.listing(source(weights), NOW)
    assert [one.path for one in found.files] == STAGED
    assert all(one.check == f"sha256:{hashlib.sha256(FILES[one.path]).hexdigest()}" for one in found.files)
    assert found.name == f"qwen@{found.revision}"
    (weights / "config.json").write_bytes(b"[]")
    assert here.listing(source(weights), NOW).revision != found.revision


def test_what_was_read_is_remembered_while_the_file_is_as_it_was(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    state, read = tmp_path / "state", list[str]()
    digest = hashlib.file_digest

    def noted(file: BufferedReader, name: str) -> object:
        read.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    first = here.listing(source(weights), NOW, state)
    assert sorted(read) == sorted(Path(name).name for name in STAGED)
    read.clear()
    assert here.listing(source(weights), NOW, state) == first
    assert read == []
    (weights / "config.json").write_bytes(b"[]")
    assert here.listing(source(weights), NOW, state).revision != first.revision
    assert read == ["config.json"]
    (state / "weights-sums.json").write_bytes(b"damaged")
    read.clear()
    assert here.listing(source(weights), datetime.fromtimestamp(0, UTC), state).files
    assert len(read) == len(STAGED)
    read.clear()
    here.listing(source(weights), NOW, state)  # what had just been written was not remembered
    assert len(read) == len(STAGED)


def test_a_snapshot_of_links_is_read_through_them(weights: Path, tmp_path: Path):
    linked = tmp_path / "snapshot"
    linked.mkdir()
    (linked / "config.json").symlink_to(weights / "config.json")
    (linked / "nowhere.json").symlink_to(weights / "nothing")
    assert [one.path for one in here.listing(source(linked), NOW).files] == ["config.json"]


def test_checksums_that_stand_beside_the_files_are_believed_until_a_host_compares(
    weights: Path, tmp_path: Path
):
    wrong = "0" * 64
    (weights / "SHA256SUMS").write_text(f"{wrong}  config.json\n")
    found = here.listing(source(weights), NOW)
    assert found.files[0].check == f"sha256:{wrong}"
    assert "SHA256SUMS" not in [one.path for one in found.files]
    answer = fetched(weights, tmp_path / "store" / "m@1")
    assert wrong in answer.stderr


@pytest.mark.parametrize("name", ["model.safetensors.incomplete", "a.part", "sub/x.tmp"])
def test_a_download_that_is_not_over_is_refused(weights: Path, name: str):
    (weights / name).write_bytes(b"half")
    with pytest.raises(SourceMoving) as refused:
        here.listing(source(weights), NOW)
    assert name in str(refused.value)
    assert unfinished(["a.safetensors", name]) == (name,)


def test_what_is_not_there_and_what_may_not_be_read(weights: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SourceMissing, match="no such directory on this machine"):
        here.listing(source(weights / "none"), NOW)

    def denied(*_words: object, **_more: object) -> None:
        raise PermissionError(13, "Permission denied", "model-1.safetensors")

    monkeypatch.setattr(Path, "open", denied)  # root, as whom tests may run, reads everything
    with pytest.raises(SourceUnreachable, match="cannot be read here: permission denied"):
        here.listing(source(weights), NOW)


def test_the_directory_arrives_whole(weights: Path, tmp_path: Path):
    final = tmp_path / "store" / "qwen@1"
    assert fetched(weights, final) == Exit(code=0)
    assert tree(final) == {name: FILES[name] for name in STAGED}
    assert sorted(final.parent.iterdir()) == [final]


def test_a_broken_copy_goes_on_at_the_byte_where_it_was(weights: Path, tmp_path: Path):
    final = tmp_path / "qwen@1"
    incoming = tmp_path / "qwen@1.partial" / ".incoming"
    incoming.mkdir(parents=True)
    content = FILES["model-1.safetensors"]
    (incoming / "model-1.safetensors").write_bytes(content[:500_000])
    (weights / "model-1.safetensors").write_bytes(content)
    sent = commands.FETCH.replace("gpufleet_want ", 'say "at $have"; gpufleet_want ')
    fetches = here.fetches(here.listing(source(weights), NOW))
    command = commands.fetch(str(final), "run-1", fetches)
    session = opened()
    answer = session.run(replace(command, script=sent))
    assert isinstance(answer, Exit)
    assert answer.ok, answer.stderr
    assert "at 500000" in answer.stderr.splitlines()
    assert tree(final)["model-1.safetensors"] == content


def test_a_file_that_changed_or_shrank_since_it_was_listed_is_no_copy(weights: Path, tmp_path: Path):
    final = tmp_path / "qwen@1"
    fetches = here.fetches(here.listing(source(weights), NOW))
    session = opened()
    flipped = bytearray(FILES["model-1.safetensors"])
    flipped[4711] ^= 1
    for content, reason in (
        (bytes(flipped), "and the source tells"),
        (b"short", "is 767995 bytes shorter than it was"),
    ):
        (weights / "model-1.safetensors").write_bytes(content)
        answer = session.run(commands.fetch(str(final), "run-1", fetches))
        assert isinstance(answer, Exit)
        assert answer.code == 1
        assert reason in answer.stderr
        assert not final.exists()
    (weights / "model-1.safetensors").unlink()
    answer = session.run(commands.fetch(str(final), "run-1", fetches))
    assert isinstance(answer, Exit)
    assert "cannot be read here: no such file or directory" in answer.stderr
    (weights / "model-1.safetensors").write_bytes(FILES["model-1.safetensors"])
    assert session.run(commands.fetch(str(final), "run-1", fetches)) == Exit(code=0)


def test_a_full_disk_is_told_as_such(weights: Path, tmp_path: Path):
    final = tmp_path / "qwen@1"
    fetches = here.fetches(here.listing(source(weights), NOW))
    incoming = tmp_path / "qwen@1.partial" / ".incoming"
    incoming.mkdir(parents=True)
    (incoming / "model-1.safetensors").symlink_to("/dev/full")
    session = opened()
    answer = session.run(commands.fetch(str(final), "run-1", fetches))
    assert isinstance(answer, Exit)
    assert "is its disk full?" in answer.stderr
