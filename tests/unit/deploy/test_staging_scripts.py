"""The scripts that fetch weights, in real shells, with a real curl, from real HTTP servers."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from gpufleet.change.model import Fails, Holds
from gpufleet.deploy.staging import ask, commands, looks, stores
from gpufleet.deploy.staging.model import Fetch, Kind, Source, WeightFile
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit
from tests.kit import weight_sources
from tests.kit.givers import giver

FILES = {
    "config.json": b'{"model_type": "toy"}\n',
    "model-1.safetensors": bytes(range(256)) * 400,
    "model-2.safetensors": b"second" * 5000,
    "sub/tokenizer.json": b"{}",
    "empty.txt": b"",
    "pytorch_model.bin": b"the same once more",
}
STAGED = sorted(set(FILES) - {"pytorch_model.bin"})
SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "sh")}


def sh(command: Command, home: Path, shell: tuple[str, ...] = ("/bin/sh",)) -> Exit:
    """Run a command as a host does."""
    ended = subprocess.run(
        [*shell, "-s"],
        input=frame(command, "marker"),
        capture_output=True,
        env={"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        timeout=120,
        check=False,
    )
    answer = unframe(ended.stdout, ended.stderr, "marker").exit
    assert answer is not None, ended.stderr
    return answer


def source(url: str, token: str = "") -> Source:
    secret = Secret(token, reference="${env:HF_TOKEN}") if token else None
    return Source(kind=Kind.HUB, model="org/name", endpoint=url, token=secret)


def listed(url: str, token: str = "") -> tuple[Fetch, ...]:
    from gpufleet.clock import SystemClock

    with ask.asker() as questions:
        found = ask.listing(source(url, token), questions, SystemClock().now())
    return ask.fetches(found, SystemClock().now())


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and one.name != ".gpufleet-manifest"
    }


def one_file(url: str, content: bytes, name: str = "a.safetensors", check: str = "") -> Fetch:
    digest = check or f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Fetch(file=WeightFile(path=name, size=len(content), check=digest), url=f"{url}/{name}")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_model_of_the_hub_arrives_whole_and_the_storage_never_sees_the_token(tmp_path: Path, shell: str):
    with weight_sources.hub(FILES, token="hf_secretsecretsecret1") as (hub, storage):
        fetches = listed(hub.url, "hf_secretsecretsecret1")
        final = tmp_path / "store" / "org--name@1"
        answer = sh(commands.fetch(str(final), "run-1", fetches), tmp_path, SHELLS[shell])
        assert (answer.code, answer.stderr) == (0, "")
    assert tree(final) == {name: FILES[name] for name in STAGED}
    assert storage.asked
    assert not any("authorization" in headers for _, _, headers in storage.asked)
    assert all("hf_secret" not in path for _, path, _ in [*hub.asked, *storage.asked])
    sums = subprocess.run(
        ["sha256sum", "-c", ".gpufleet-manifest"], cwd=final, capture_output=True, check=False
    )
    assert sums.returncode == 0
    assert sorted(final.parent.iterdir()) == [final]
    look = sh(stores.look(str(final), "run-1"), tmp_path, SHELLS[shell])
    assert looks.whole(look, (str(final),)) == Holds()


def test_a_broken_transfer_goes_on_where_it_was(tmp_path: Path):
    content = bytes(range(256)) * 2000
    with weight_sources.plain({"a.safetensors": content}, cut={"a.safetensors": [100_000, 50_000]}) as served:
        final = tmp_path / "m@1"
        answer = sh(commands.fetch(str(final), "run-1", [one_file(served.url, content)]), tmp_path)
        assert answer.ok, answer.stderr
        starts = [headers.get("range", "") for method, _, headers in served.asked if method == "GET"]
    assert starts == ["", "bytes=100000-", "bytes=150000-"]
    assert (final / "a.safetensors").read_bytes() == content


def test_a_copy_that_was_killed_is_resumed_by_the_next(tmp_path: Path):
    files = {"a.safetensors": b"a" * 50_000, "b.safetensors": b"b" * 50_000}
    final = tmp_path / "m@1"
    with weight_sources.plain(files, cut={"b.safetensors": [20_000, 0, 0, 0]}) as served:
        fetches = [one_file(served.url, content, name) for name, content in files.items()]
        assert not sh(commands.fetch(str(final), "run-1", fetches), tmp_path).ok
        assert not final.exists()
        survey = looks.read_survey(sh(stores.survey(str(final)), tmp_path).stdout)
        assert survey is not None
        assert (survey.state, survey.writer, survey.lacks) == ("partial", "", ())
        # As a killed writer leaves it: the lease is there, and its process is not.
        lease = tmp_path / "m@1.lease"
        lease.mkdir()
        machine = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()
        (lease / "holder").write_text(f"{machine} 999999999 12345 run-1\n")
        before = served.reads("a.safetensors")
        answer = sh(commands.fetch(str(final), "run-2", fetches), tmp_path)
        assert answer.ok, answer.stderr
        assert served.reads("a.safetensors") == before
        assert served.asked[-1][2]["range"] == "bytes=20000-"
    assert tree(final) == files


def test_of_two_writers_one_copies_and_the_other_uses_it(tmp_path: Path):
    content = bytes(range(256)) * 4000
    final = tmp_path / "m@1"
    with weight_sources.plain({"a.safetensors": content}) as served:
        answers: list[Exit] = []
        fetches = [one_file(served.url, content)]
        threads = [
            threading.Thread(
                target=lambda n=n: answers.append(
                    sh(commands.fetch(str(final), f"run-{n}", fetches), tmp_path)
                )
            )
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert [(answer.code, answer.stderr) for answer in answers] == [(0, "")] * 3
        assert served.reads("a.safetensors") == 1
    assert tree(final) == {"a.safetensors": content}


def test_a_writer_of_another_machine_that_moves_nothing_is_replaced(tmp_path: Path):
    final, lease = tmp_path / "m@1", tmp_path / "m@1.lease"
    lease.mkdir()
    (lease / "holder").write_text("another-machine 17 12345 run-0\n")
    with weight_sources.plain({"a.safetensors": b"abc"}) as served:
        answer = sh(commands.fetch(str(final), "run-1", [one_file(served.url, b"abc")], patience=2), tmp_path)
    assert answer.ok, answer.stderr
    assert tree(final) == {"a.safetensors": b"abc"}


def test_a_wrong_checksum_at_the_source_is_an_error_that_names_both(tmp_path: Path):
    with weight_sources.plain({"a.safetensors": b"something else"}) as served:
        wanted = one_file(served.url, b"something new!")
        answer = sh(commands.fetch(str(tmp_path / "m@1"), "run-1", [wanted]), tmp_path)
        assert served.reads("a.safetensors") == 2
    assert answer.code == 1
    assert wanted.file.check.removeprefix("sha256:") in answer.stderr
    assert not (tmp_path / "m@1").exists()


def test_a_flipped_byte_is_found_and_only_that_file_is_fetched_again(tmp_path: Path):
    files = {"a.safetensors": b"a" * 5000, "b.safetensors": b"b" * 5000}
    final = tmp_path / "m@1"
    with weight_sources.plain(files) as served:
        fetches = [one_file(served.url, content, name) for name, content in files.items()]
        assert sh(commands.fetch(str(final), "run-1", fetches), tmp_path).ok
        flipped = bytearray(files["b.safetensors"])
        flipped[4711] ^= 1
        (final / "b.safetensors").write_bytes(flipped)
        assert sh(commands.fetch(str(final), "run-2", fetches), tmp_path).ok
        assert (final / "b.safetensors").read_bytes() == flipped
        answer = sh(commands.fetch(str(final), "run-3", fetches, mode="verify"), tmp_path)
        assert answer.ok, answer.stderr
        assert (served.reads("a.safetensors"), served.reads("b.safetensors")) == (1, 2)
    assert tree(final) == files


def test_a_flipped_byte_of_a_neighbour_is_found_and_the_source_is_asked(tmp_path: Path):
    good, bad = b"good" * 1000, b"bad!" * 1000
    with (
        weight_sources.plain({"a.safetensors": good}) as served,
        weight_sources.plain({"a.safetensors": bad}) as near,
    ):
        wanted = one_file(served.url, good)
        answer = sh(commands.fetch(str(tmp_path / "m@1"), "run-1", [wanted], near=near.url), tmp_path)
        assert answer.ok, answer.stderr
        assert (near.reads("a.safetensors"), served.reads("a.safetensors")) == (2, 1)
    assert (tmp_path / "m@1" / "a.safetensors").read_bytes() == good


def test_a_host_that_has_the_weights_gives_them_to_another(tmp_path: Path):
    content = bytes(range(256)) * 3000
    wanted = one_file("http://127.0.0.1:9", content, "sub dir/a.safetensors")
    (tmp_path / "one" / "sub dir").mkdir(parents=True)
    (tmp_path / "one" / "sub dir" / "a.safetensors").write_bytes(content)
    final = tmp_path / "two" / "m@1"
    incoming = tmp_path / "two" / "m@1.partial" / ".incoming" / "sub dir"
    incoming.mkdir(parents=True)
    (incoming / "a.safetensors").write_bytes(content[:100_000])
    with giver(tmp_path / "one", "word") as url:
        for wrong in ("", "/", "/wrong/sub%20dir/a.safetensors", "/word/../two", "/word/%2e%2e/x", "/word/"):
            assert httpx.get(url + wrong).status_code == 404
        near = Secret(f"{url}/word", reference="http://x/${file:word}")
        answer = sh(commands.fetch(str(final), "run-1", [wanted], near=near), tmp_path)
        assert answer.ok, answer.stderr
    assert tree(final) == {"sub dir/a.safetensors": content}


def test_a_giver_that_is_not_reached_is_asked_once(tmp_path: Path):
    files = {f"{n}.safetensors": b"x" * (100 + n) for n in range(5)}
    with weight_sources.plain(files) as served:
        fetches = [one_file(served.url, content, name) for name, content in files.items()]
        command = commands.fetch(str(tmp_path / "m@1"), "run-1", fetches, near="http://127.0.0.1:9/word")
        answer = sh(command, tmp_path)
        assert answer.ok, answer.stderr
    assert tree(tmp_path / "m@1") == files


def test_a_server_without_ranges_is_read_from_the_beginning(tmp_path: Path):
    content = b"x" * 40_000
    with weight_sources.plain(
        {"a.safetensors": content}, ranges=False, cut={"a.safetensors": [10_000]}
    ) as served:
        answer = sh(commands.fetch(str(tmp_path / "m@1"), "run-1", [one_file(served.url, content)]), tmp_path)
        assert answer.ok, answer.stderr
    assert tree(tmp_path / "m@1") == {"a.safetensors": content}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_at_the_host_is_told_at_once(tmp_path: Path, status: int):
    with weight_sources.hub(FILES, token="hf_secretsecretsecret1") as (hub, _):
        fetches = listed(hub.url, "hf_secretsecretsecret1")
        if status == 401:
            hub.token = "hf_anothertokenanother1"
        elif status == 403:
            hub.gated = True
        else:
            hub.files.clear()
        answer = sh(commands.fetch(str(tmp_path / "m@1"), "run-1", fetches), tmp_path)
    assert answer.code == 1
    assert f"HTTP {status} from {hub.url}" in answer.stderr
    assert "hf_" not in answer.stderr


def test_what_a_broken_copy_left_is_taken_away_and_what_another_writes_is_not(tmp_path: Path):
    final, partial, lease = tmp_path / "m@1", tmp_path / "m@1.partial", tmp_path / "m@1.lease"
    partial.mkdir()
    (partial / "a").write_bytes(b"half")
    lease.mkdir()
    (lease / "holder").write_text("another-machine 17 12345 run-9\n")
    assert sh(commands.tidy(str(final), "run-1"), tmp_path).ok
    assert partial.exists()
    assert looks.no_partial(sh(stores.look(str(final), "run-1"), tmp_path), ()) == Holds()
    (lease / "holder").write_text("another-machine 17 12345 run-1\n")
    assert looks.no_partial(sh(stores.look(str(final), "run-1"), tmp_path), ()) == Fails(
        "a partial copy is left"
    )
    assert sh(commands.tidy(str(final), "run-1"), tmp_path).ok
    assert not partial.exists()
    assert not lease.exists()


def test_something_that_is_not_ours_is_left_alone(tmp_path: Path):
    (tmp_path / "m@1").mkdir()
    (tmp_path / "m@1" / "theirs").write_text("x")
    answer = sh(commands.fetch(str(tmp_path / "m@1"), "run-1", []), tmp_path)
    assert answer.code == 1
    assert "move it away" in answer.stderr


def test_a_directory_of_the_host_is_copied(tmp_path: Path):
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "a b'c.json").write_bytes(b"{}")
    wanted = Fetch(file=WeightFile(path="a b'c.json", size=2), url=str(tmp_path / "share" / "a b'c.json"))
    answer = sh(commands.fetch(str(tmp_path / "store" / "m@1"), "run-1", [wanted]), tmp_path)
    assert answer.ok, answer.stderr
    assert tree(tmp_path / "store" / "m@1") == {"a b'c.json": b"{}"}
