"""Planted secrets are looked for everywhere that is not the one place they are for, over real SSH and real HTTP.

One fleet, one story: facts, checks, commands, a dry run, a deploy that fails, one that is killed half-way and taken
up, one that succeeds, requests with good and bad tokens. Then everything is searched that was said, kept, called or
handed on.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from gpufleet.change.records import journal_file
from gpufleet.cli.app import main
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.serve import RunningLab
from gpufleet.lab.simfs import File
from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.run.background import ProxyThread
from tests.kit.engines import PATIENCE
from tests.kit.recorder import Recorder, record

SSH = shutil.which("ssh")
pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(SSH is None, reason="needs OpenSSH's client (package openssh-client)"),
]
PLANTED = {
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm12345678",  # looks like a known kind of token
    "ENGINE_WORD": "Zq9engine.plain.word",  # and these look like nothing: only knowing them hides them
    "ROOT_WORD": 'Zq9sudo\'word "quoted"',
    "KEY_WORDS": "Zq9 passphrase of the key",
}
STAND_IN = """#!/bin/sh
{ printf '%s\\n' "$@"; env; } >>"$0.log"
exec REAL "$@"
"""


class Leaky:
    """Engines that print their environment, as a framework with debug logs does."""

    def __init__(self, real):
        self.real, self.environments = real, {}

    def __getattr__(self, name):
        return getattr(self.real, name)

    def launch(self, container_id, argv, env, bind):
        self.environments[container_id] = dict(env)
        self.real.launch(container_id, argv, env, bind)

    def logs(self, container_id):
        lines = [
            f"INFO env {key} -> {value}" for key, value in self.environments.get(container_id, {}).items()
        ]
        return "\n".join(lines) + "\n" + self.real.logs(container_id) + "\n" + "\n".join(lines) + "\n"


class Story:
    """A desk with an inventory full of references, in front of a lab."""

    def __init__(self, path: Path, lab: RunningLab, capfd) -> None:
        self.path, self.lab, self.capfd = path, lab, capfd
        self.state = path / "state"
        self.said: list[str] = []
        self.recorder: Recorder = record(lab.fleet)
        for one in lab.fleet:
            users = one.host.users
            users["pwops"] = replace(users["pwops"], password=PLANTED["ROOT_WORD"], groups=("pwops",))
            one.containers.engines = Leaky(one.containers.engines)
        key = paramiko.ECDSAKey.from_private_key_file(str(lab.folder.key))
        key.write_private_key_file(str(path / "id"), password=PLANTED["KEY_WORDS"])
        hosts = "".join(f"  {one.name}: {{address: '{one.host.address}:2222'}}\n" for one in lab.fleet)
        (path / "inventory.yaml").write_text(
            "version: 1\ndefaults:\n  user: pwops\n  become: always\n  sudo_password: '${env:ROOT_WORD}'\n"
            f"  identity_file: {path / 'id'}\n  passphrase: '${{env:KEY_WORDS}}'\n"
            f"  known_hosts: {lab.folder.known_hosts}\n  ssh_config: {lab.folder.ssh_config}\nhosts:\n{hosts}"
            "pools:\n  chat:\n    model: m/tiny\n    replicas: 2\n    gate: {every: 0.05, stall: 60, within: 120}\n"
            "    engine:\n      image: vllm/vllm-openai:v0.20.0\n"
            "      env: {HF_TOKEN: '${env:HF_TOKEN}', PLAIN: '${env:ENGINE_WORD}'}\n"
        )

    def run(self, *words: str) -> int:
        at = words.index("--") if "--" in words else len(words)
        options = ["-i", str(self.path / "inventory.yaml"), "--state-dir", str(self.state), "--no-input"]
        code = main([*words[:at], *options, *words[at:]])
        told = self.capfd.readouterr()
        self.said.append(f"{words} {code}\n{told.out}{told.err}")
        return code

    def token(self) -> str:
        """A bearer token; the one answer whose purpose is to show it."""
        assert main(["token", "create", "demo", "--state-dir", str(self.state)]) == 0
        shown: str = self.capfd.readouterr().out
        return shown.strip()

    def key(self) -> str:
        return (self.state / "keys" / "chat").read_text().strip()

    def kept_here(self) -> dict[str, bytes]:
        """Every file of the state directory but the engines' keys."""
        found = (path for path in self.state.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found if path.parent.name != "keys"}

    def kept_there(self) -> dict[str, bytes]:
        """Every file on every host."""
        return {
            f"{one.name}:{path}": node.content
            for one in self.lab.fleet
            for path, node in one.host.fs.walk("/")
            if isinstance(node, File)
        }

    def environment_files(self) -> list[str]:
        return [path for path in self.kept_there() if "/.gpufleet/env/" in path]


@pytest.fixture
def story(tmp_path, monkeypatch, capfd) -> Iterator[Story]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(STAND_IN.replace("REAL", str(SSH)))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NO_COLOR", "1")
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    with RunningLab(tmp_path / "lab", hosts=2, gpus="1xH100-80GB", load_seconds=0.2, pull_seconds=0.0) as lab:
        yield Story(tmp_path, lab, capfd)


@contextmanager
def killed_after(records: int, monkeypatch) -> Iterator[None]:
    """The process dies when this many records of a journal are on disk."""

    class Killed(BaseException):
        pass

    real = journal_file.JournalFile.append

    def append(file, body):
        if len(file.records) >= records:
            raise Killed
        return real(file, body)

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.JournalFile, "append", append)
        with pytest.raises(Killed):
            yield


def ask(port: int, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = json.dumps({"model": "m/tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def tell(story: Story, monkeypatch) -> list[str]:
    """Everything happens once; gives the secrets that came to be on the way."""
    for form in ((), ("-v",), ("-o", "json")):
        assert story.run("hosts", "facts", *form) == 0
        assert story.run("hosts", "check", *form) == 0
        assert story.run("pool", "deploy", "chat", "--dry-run", *form) == 0
    assert story.run("hosts", "run", "all", "-v", "--sudo", "--", "id", "-u") == 0
    fault = Fault(kind=Kind.ENGINE, host="gpu-02", detail="crash")
    story.lab.fleet["gpu-02"].strike(fault)
    for form in (("-v",), ("-o", "json")):
        assert story.run("pool", "deploy", "chat", "--yes", *form) == 9
    story.lab.fleet["gpu-02"].containers.launch_words = {}
    with killed_after(8, monkeypatch):
        story.run("pool", "deploy", "chat", "--yes", "-v")
    (run,) = [one.run for one in journal_file.summaries(story.state) if not one.ending]
    assert story.run("change", "list", "-o", "json") == 0
    assert story.run("change", "show", run) == 0
    assert story.run("change", "resume", run, "--yes", "-v") == 0
    assert story.run("pool", "deploy", "chat", "--yes", "-v") == 0
    assert story.run("pool", "show", "chat", "-o", "json") == 0
    assert story.run("hosts", "facts", "-o", "json") == 0
    token = story.token()
    config = ProxyConfig(
        listen=Address(host="127.0.0.1", port=0),
        admin=Address(host="127.0.0.1", port=0),
        routes=str(story.state / "routes.json"),
        tokens=str(story.state / "tokens.db"),
    )
    with ProxyThread(config) as started:
        assert ask(started.listen.port, token) == 200
        assert ask(started.listen.port, token[:-4] + "zzzz") == 401
        assert ask(started.listen.port, PLANTED["ENGINE_WORD"].replace(" ", "")) == 401
        for page in ("/", "/metrics", "/admin/members"):
            connection = http.client.HTTPConnection("127.0.0.1", started.admin.port, timeout=PATIENCE)
            connection.request("GET", page)
            story.said.append(connection.getresponse().read().decode())
            connection.close()
    told = story.capfd.readouterr()
    story.said.append(told.out + told.err)
    assert story.run("token", "list", "-o", "json") == 0
    return [token, story.key()]


def test_planted_secrets_are_where_they_belong_and_nowhere_else(story, monkeypatch):
    made = tell(story, monkeypatch)
    secrets = [*PLANTED.values(), *made]
    for one in story.lab.fleet:  # a search that finds nothing must be able to find something
        (replica,) = [each for each in one.containers.containers.values() if each.running]
        given = one.containers.engines.environments[replica.id]
        assert (given["HF_TOKEN"], given["PLAIN"]) == (PLANTED["HF_TOKEN"], PLANTED["ENGINE_WORD"])
        assert given["VLLM_API_KEY"] == story.key()
    assert [(text[:300], word) for text in story.said for word in secrets if word in text] == []
    forms = [form for word in secrets for form in (word, json.dumps(word)[1:-1])]
    for kept in (story.kept_here(), story.kept_there()):
        assert kept
        assert [
            (where, form) for where, content in kept.items() for form in forms if form.encode() in content
        ] == []
    assert any("journal.jsonl" in where for where in story.kept_there())
    assert story.environment_files() == []
    words = story.recorder.words()
    assert [word[:200] for word in words if any(secret in word for secret in secrets)] == []
    assert story.recorder.of("docker", "run")
    assert story.recorder.of("sudo")
    handed_on = (story.path / "bin" / "ssh.log").read_text()
    assert "-G" in handed_on
    assert [secret for secret in secrets if secret in handed_on] == []


def test_a_crash_file_holds_no_known_kind_of_secret(tmp_path, monkeypatch, capfd):
    """What nobody foresaw is scrubbed by what secrets look like; values of references are masks already."""
    from gpufleet.cli import wiring
    from gpufleet.redact import Secret

    token, plain = PLANTED["HF_TOKEN"], PLANTED["ENGINE_WORD"]

    def broken(_settings):
        raise RuntimeError(f"cannot use {Secret(plain, reference='${env:X}')!r} and {token}")

    monkeypatch.setattr(wiring, "load_inventory", broken)
    state = tmp_path / "state"
    for form in (("-v",), ("-o", "json")):
        assert main(["hosts", "list", "--state-dir", str(state), *form]) == 1
    told = capfd.readouterr()
    (crash,) = (state / "crashes").iterdir()
    for text in (told.out, told.err, crash.read_text()):
        assert "RuntimeError" in text
        assert token not in text
        assert plain not in text


def test_a_variable_that_a_reference_names_is_handed_to_no_program_of_ours(tmp_path):
    """Its name and its value look like nothing; that a reference names it is enough."""
    (tmp_path / "inventory.yaml").write_text(
        "hosts:\n  here: {address: 127.0.0.1, connection: local, sudo_password: '${env:ODD}'}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "gpufleet", "hosts", "run", "here", "-o", "json", "--", "env"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "ODD": "Zq9odd", "EVEN": "shown"},
    )
    assert "EVEN=shown" in ended.stdout
    assert "Zq9odd" not in ended.stdout
