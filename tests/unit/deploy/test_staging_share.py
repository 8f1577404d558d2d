"""A directory on the hosts: how it is listed in real shells, and how a copy notices that somebody writes there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.change.model import CannotTell, Fails, Holds
from gpufleet.deploy.staging import commands, patient, share
from gpufleet.deploy.staging.model import Kind, Source
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit
from tests.kit.givers import giver

SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "sh")}
FILES = {
    "config.json": b"{}",
    "model-1.safetensors": bytes(range(256)) * 3000,
    "sub/a b'c.json": b"[]",
    "model.bin": b"the same once more",
}
STAGED = ["config.json", "model-1.safetensors", "sub/a b'c.json"]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    made = tmp_path / "share" / "qwen"
    for name, content in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
        os.utime(made / name, (1_700_000_000, 1_700_000_000))
    return made


def sh(command: Command, shell: str = "dash") -> Exit:
    ended = subprocess.run(
        [*SHELLS[shell], "-s"], input=frame(command, "marker"), capture_output=True, timeout=120, check=False
    )
    answer = unframe(ended.stdout, ended.stderr, "marker").exit
    assert answer is not None, ended.stderr
    return answer


def source(top: Path) -> Source:
    return Source(kind=Kind.DIRECTORY, model="qwen", place=str(top))


def shown(top: Path, shell: str = "dash") -> share.Shown:
    found = share.read(sh(share.look(str(top)), shell).stdout, source(top))
    assert found is not None
    return found


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_there_with_sizes_and_times(top: Path, shell: str):
    found = shown(top, shell)
    assert [one.path for one in found.files] == STAGED
    assert found.files[1].size == len(FILES["model-1.safetensors"])
    assert {one.check for one in found.files} == {"mtime:1700000000"}
    again = shown(top, shell)
    assert (share.moving(found, again), again.revision) == ("", found.revision)
    os.utime(top / "config.json", (1_700_000_001, 1_700_000_001))
    assert share.moving(found, shown(top, shell)) == "config.json"
    assert shown(top, shell).revision != found.revision


def test_checksums_beside_the_files_are_used(top: Path):
    digest = hashlib.sha256(FILES["config.json"]).hexdigest()
    (top / "SHA256SUMS").write_text(f"{digest}  config.json\n{'0' * 64}  nothing\n")
    found = shown(top)
    assert [one.check for one in found.files][:2] == [f"sha256:{digest}", "mtime:1700000000"]


def test_what_is_not_there_and_what_cannot_be_read_are_not_empty(tmp_path: Path, top: Path):
    assert shown(tmp_path / "none").state == "absent"
    assert share.read("denied\n", source(top)).state == "denied"  # type: ignore[union-attr]  # fails when None
    assert share.read("there\nfile 2 17 a.json\ndenied\n", source(top)).state == "denied"  # type: ignore[union-attr]
    for text in (
        "",
        "there\nfile 2 17 a.json\n",
        "there\nfile x 17 a\nend\n",
        "there\nfile 2 17 ../a\nend\n",
    ):
        assert share.read(text, source(top)) is None


def fetched(top: Path, final: Path, **more: object) -> Exit:
    fetches = share.fetches(share.listing(source(top), shown(top)))
    return sh(commands.fetch(str(final), "run-1", fetches, **more))  # type: ignore[arg-type]  # options by name


def test_it_is_copied_from_the_byte_that_is_missing_and_compared_with_what_is_there(
    top: Path, tmp_path: Path
):
    final = tmp_path / "store" / "qwen@1"
    incoming = tmp_path / "store" / "qwen@1.partial" / ".incoming"
    incoming.mkdir(parents=True)
    (incoming / "model-1.safetensors").write_bytes(FILES["model-1.safetensors"][:500_000])
    assert fetched(top, final) == Exit(code=0)
    for name in STAGED:
        assert (final / name).read_bytes() == FILES[name]


def test_a_broken_copy_of_something_else_is_noticed_and_copied_anew(top: Path, tmp_path: Path):
    final = tmp_path / "qwen@1"
    incoming = tmp_path / "qwen@1.partial" / ".incoming"
    incoming.mkdir(parents=True)
    (incoming / "model-1.safetensors").write_bytes(b"!" * 500_000)
    assert fetched(top, final) == Exit(code=0)
    assert (final / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


def test_a_file_that_changed_since_it_was_listed_is_not_copied(top: Path, tmp_path: Path):
    fetches = share.fetches(share.listing(source(top), shown(top)))
    (top / "config.json").write_bytes(b"[]")
    answer = sh(commands.fetch(str(tmp_path / "qwen@1"), "run-1", fetches))
    assert answer.code == 1
    assert "config.json changed since it was listed: somebody writes there" in answer.stderr
    (top / "config.json").unlink()
    assert "cannot be read" in sh(commands.fetch(str(tmp_path / "qwen@1"), "run-1", fetches)).stderr


def test_a_file_that_changes_while_it_is_copied_is_not_kept(top: Path, tmp_path: Path):
    fetches = share.fetches(share.listing(source(top), shown(top)))
    command = commands.fetch(str(tmp_path / "qwen@1"), "run-1", fetches)
    touched = command.script.replace(
        'tail -c "+$((have + 1))" "$1"', 'touch "$1"; tail -c "+$((have + 1))" "$1"'
    )
    assert touched != command.script
    answer = sh(replace(command, script=touched))
    assert answer.code == 1
    assert "changed while it was copied: somebody writes there" in answer.stderr
    assert not (tmp_path / "qwen@1").exists()


def test_a_neighbours_copy_is_compared_with_what_the_neighbour_wrote(top: Path, tmp_path: Path):
    first = tmp_path / "one" / "qwen@1"
    assert fetched(top, first) == Exit(code=0)
    with giver(first, "word") as url:
        second = tmp_path / "two" / "qwen@1"
        assert fetched(top, second, near=f"{url}/word") == Exit(code=0)
        flipped = bytearray(FILES["model-1.safetensors"])
        flipped[4711] ^= 1
        (first / "model-1.safetensors").write_bytes(flipped)
        third = tmp_path / "three" / "qwen@1"
        assert fetched(top, third, near=f"{url}/word") == Exit(code=0)
    assert (second / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]
    assert (third / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


def test_a_directory_that_is_used_in_place_must_be_as_it_was(top: Path):
    listing = share.listing(source(top), shown(top))
    data = share.data_of(listing)
    assert share.unchanged(sh(share.look(str(top))), data) == Holds()
    (top / "new.json").write_bytes(b"{}")
    changed = share.unchanged(sh(share.look(str(top))), data)
    assert isinstance(changed, Fails)
    assert "changed since the plan was made" in changed.reason
    assert isinstance(share.unchanged(Exit(code=0, stdout="absent\n"), data), Fails)
    assert isinstance(share.unchanged(Exit(code=1, stderr="x"), data), CannotTell)


def standing_in(folder: Path, **programs: str) -> dict[str, str]:
    """An environment whose programs of these names are scripts."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}


def asked(command: Command, environment: dict[str, str], shell: str = "dash") -> Exit:
    ended = subprocess.run(
        [*SHELLS[shell], "-s"],
        input=frame(command, "marker"),
        capture_output=True,
        timeout=120,
        check=False,
        env=environment,
    )
    answer = unframe(ended.stdout, ended.stderr, "marker").exit
    assert answer is not None, ended.stderr
    return answer


BLOCKED = 'echo $$ >>"$HOME/blocked"; exec sleep 600'
"""A program that never comes back, as one that reads from a share without its server."""


def gone(folder: Path) -> bool:
    """Whether no process that was blocked is left."""
    pids = (folder / "blocked").read_text().split()
    assert pids
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("shell", ["dash", "bash"])  # busybox has an `ls` of its own
def test_a_directory_whose_server_is_gone_is_told_and_not_waited_for(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
):
    quick = share.LIST.replace(f"patiently {patient.ANSWER_SECONDS} ", "patiently 1 ")
    assert quick != share.LIST
    monkeypatch.setattr(share, "LIST", quick)
    answer = asked(share.look(str(top)), standing_in(tmp_path / "bin", ls=BLOCKED), shell)
    seen = share.read(answer.stdout, source(top))
    assert seen is not None
    assert seen.state == "hung"
    assert gone(tmp_path / "bin")
    verdict = share.unchanged(answer, share.data_of(share.listing(source(top), shown(top))))
    assert isinstance(verdict, Fails)
    assert "not answering" in verdict.reason
    assert "dmesg" in verdict.hint


def copied(top: Path, tmp_path: Path, environment: dict[str, str], shell: str = "dash") -> Exit:
    found = share.listing(source(top), shown(top))
    return asked(
        commands.fetch(str(tmp_path / "store" / "qwen"), "run-1", share.fetches(found), stall=1),
        environment,
        shell,
    )


@pytest.mark.parametrize("program", ["tail", "stat"])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_copy_from_a_server_that_goes_away_ends_with_its_reason(
    top: Path, tmp_path: Path, shell: str, program: str
):
    share_alone = f'case $* in *{top}*) {BLOCKED} ;; *) exec /usr/bin/{program} "$@" ;; esac'
    answer = copied(top, tmp_path, standing_in(tmp_path / "bin", **{program: share_alone}), shell)
    assert answer.code == 1
    assert f"config.json: {top}/config.json gives no byte for 1 s" in answer.stderr
    assert gone(tmp_path / "bin")
    assert not (tmp_path / "store" / "qwen").exists()
    assert not (tmp_path / "store" / "qwen.lease").exists()
    assert copied(top, tmp_path, standing_in(tmp_path / "well"), shell).ok
    assert (tmp_path / "store" / "qwen" / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


def test_a_copy_that_is_slow_and_moves_is_waited_for(top: Path, tmp_path: Path):
    slow = 'for part in 0 1 2; do /usr/bin/tail "$@" | dd bs=256000 iflag=fullblock skip=$part count=1 2>/dev/null; sleep 2; done'
    name = f'case $* in *{top}/model-1*) {slow} ;; *) exec /usr/bin/tail "$@" ;; esac'
    found = share.listing(source(top), shown(top))
    command = commands.fetch(str(tmp_path / "store" / "qwen"), "run-1", share.fetches(found), stall=3)
    answer = asked(command, standing_in(tmp_path / "bin", tail=name))
    assert answer.ok, answer.stderr
    assert (tmp_path / "store" / "qwen" / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]
