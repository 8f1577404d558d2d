"""Planted tokens: nobody but the engine may see them, whether the deploy succeeds or fails."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.real import faults, snapshot
from tests.real.base import PASSWORD
from tests.real.desk import Answer, Operator
from tests.real.fleet import Fleet
from tests.real.sampler import Sampler, calls, docker_recorded, record_ssh
from tests.real.scene import EXTRA, Scene

PAIR = ("h1", "h2")


def files_with(folder: Path, words: list[str]) -> list[str]:
    """Files below a folder that hold one of the words."""
    contents = ((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    return [f"{path}: {word}" for path, content in contents for word in words if word.encode() in content]


@pytest.mark.parametrize("behaviour", ["ok", "leak"])
def test_a_planted_token_is_nowhere_but_in_the_engine(fleet: Fleet, tmp_path: Path, behaviour: str) -> None:
    """The engine that leaks prints its secrets into its log, whose end is part of the error."""
    # One looks like a known kind of token, the other like nothing: only knowing its value hides it.
    planted = {"HF_TOKEN": f"hf_{secrets.token_hex(17)}", "OTHER_SECRET": f"Zq{secrets.token_hex(9)}.plain"}
    words = list(planted.values())
    log = record_ssh(tmp_path / "bin")
    environment = {**planted, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    operator = Operator(fleet, tmp_path / "desk", PAIR, extra=EXTRA, environment=environment)
    engine = {"env": {"HF_TOKEN": "${env:HF_TOKEN}", "OTHER_SECRET": "${env:OTHER_SECRET}"}}
    definition = Scene(fleet, operator).define({"hosts": list(PAIR), "replicas": 2, "engine": engine})
    before = snapshot.look(fleet, PAIR)
    with (
        docker_recorded(fleet, PAIR),
        faults.engine_behaves(fleet.hosts["h2"], behaviour),
        Sampler(fleet) as sampler,
    ):
        answer = operator.run("pool", "deploy", "-f", str(definition), "--yes", "--verbose")
        recorded = {name: calls(fleet, name) for name in PAIR}
    try:
        assert answer.exit == (0 if behaviour == "ok" else 9), answer
        if behaviour == "ok":
            assert_engine_has(fleet, words)
        assert_nowhere(fleet, operator, answer, words, {**recorded, "ssh": log.read_text()}, sampler)
        assert "run -d" in recorded["h1"]
        assert "-G" in log.read_text()
        assert sampler.rounds > 10
    finally:
        for name in PAIR:
            fleet.ssh(name, "docker ps -aq --filter label=gpufleet.pool=chat | xargs -r docker rm -f")
    assert snapshot.settled_as(fleet, before) == []


def assert_engine_has(fleet: Fleet, words: list[str]) -> None:
    """The tokens did arrive: a test that finds nothing must be able to find something."""
    for name in PAIR:
        given = fleet.ssh(name, "docker inspect $(docker ps -q --filter label=gpufleet.pool=chat)")
        assert all(word in given for word in words)


def assert_nowhere(
    fleet: Fleet,
    operator: Operator,
    answer: Answer,
    words: list[str],
    recorded: dict[str, str],
    sampler: Sampler,
) -> None:
    """Not in what was said, kept, called or run; on this machine or on a host."""
    assert [word for word in words if word in answer.text] == [], answer
    assert files_with(operator.state, words) == []
    for who, text in recorded.items():
        assert [word for word in words if word in text] == [], who
    assert [line for line in sampler.seen for word in words if word in line] == []
    for name in PAIR:
        kept = fleet.hosts[name].shell(
            "cat /var/log/*.log; find /home /tmp /root /run/host /run/user -type f -size -4M -exec cat {} + 2>/dev/null; true"
        )
        assert [word for word in words if word in kept] == [], name


def test_a_sudo_password_is_nowhere(fleet: Fleet, tmp_path: Path) -> None:
    extra = f"{EXTRA}  sudo_password: ${{env:SUDO_WORD}}\n"
    log = record_ssh(tmp_path / "bin")
    environment = {"SUDO_WORD": PASSWORD, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    operator = Operator(fleet, tmp_path / "desk", PAIR, user="pwops", extra=extra, environment=environment)
    with Sampler(fleet) as sampler:
        facts = operator.run("hosts", "facts", "--verbose")
        ran = operator.run("hosts", "run", "h1", "--sudo", "--verbose", "--", "sleep", "0.3")
    assert [facts.exit, ran.exit] == [0, 0], (facts, ran)
    assert facts.host("h1")["runtime"]["kind"] == "docker"
    assert PASSWORD not in facts.text + ran.text
    assert [line for line in sampler.seen if PASSWORD in line] == []
    assert any("sleep 0.3" in line for line in sampler.seen), "the sampler saw nothing of the command"
    # The environment that a command was started with is its own; what it hands on to ssh is looked at.
    assert PASSWORD not in log.read_text().replace(f"SUDO_WORD={PASSWORD}", "")
    assert files_with(operator.desk / "state", [PASSWORD]) == []
