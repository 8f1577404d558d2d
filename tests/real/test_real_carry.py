"""An image that one host built reaches another without a registry, over two releases of Docker; and goes again."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import faults, snapshot
from tests.real.desk import Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene

IMAGE = "local/engine:1"
ID = f"docker image inspect --format '{{{{.Id}}}}' {IMAGE}"
TRACES = "ls -d .gpufleet/images/*/ .gpufleet/images/*.partial 2>/dev/null; docker ps -aq --filter name=gpufleet-give"


@pytest.fixture
def pair(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """A host with an image of its own, and one of another release where there is one."""
    names = ("h1", "h4" if "h4" in fleet.hosts else "h2")
    base = fleet.images["v0.11.2"]
    fleet.ssh(names[0], f"docker run --name seed --entrypoint sh {base} -c 'echo own >/own'")
    fleet.ssh(names[0], f"docker commit seed {IMAGE} && docker rm seed")
    try:
        yield names
    finally:
        for name in names:
            fleet.ssh(name, "docker ps -aq --filter label=gpufleet.pool=chat | xargs -r docker rm -f")
            fleet.ssh(name, f"docker rmi {IMAGE} || true")


@pytest.mark.parametrize("behaviour", ["ok", "crash"])
def test_an_image_of_one_host_is_carried_to_another(
    fleet: Fleet, pair: tuple[str, str], tmp_path: Path, behaviour: str
) -> None:
    first, second = pair
    operator = Operator(fleet, tmp_path / "desk", pair, extra=EXTRA)
    wish = {"hosts": list(pair), "replicas": 2, "engine": {"image": IMAGE, "version": "0.11.2"}}
    definition = Scene(fleet, operator).define({**wish, "placement": "spread"})
    identity = fleet.ssh(first, ID).strip()
    assert fleet.ssh_answer(second, ID).returncode != 0
    before = snapshot.look(fleet, pair)
    with faults.engine_behaves(fleet.hosts[second], behaviour):
        answer = operator.run("pool", "deploy", "-f", str(definition), "--yes")
    assert f"pinned by its image id {identity}" in answer.text, answer
    if behaviour == "ok":
        assert answer.exit == 0, answer
        assert fleet.ssh(second, ID).strip() == identity
        asked = "docker ps -q --filter label=gpufleet.pool=chat | xargs docker inspect --format '{{.Image}}'"
        assert {fleet.ssh(name, asked).strip() for name in pair} == {identity}
    else:
        assert answer.exit == 9, answer
        assert fleet.ssh_answer(second, ID).returncode != 0
        assert snapshot.settled_as(fleet, before) == []
    assert fleet.ssh(first, ID).strip() == identity
    assert {name: fleet.ssh_answer(name, TRACES).stdout for name in pair} == dict.fromkeys(pair, "")


def test_weights_from_this_machine_reach_one_host_over_ssh_and_the_other_from_there(
    fleet: Fleet, tmp_path: Path
) -> None:
    names = ("h1", "h4" if "h4" in fleet.hosts else "h2")
    top = tmp_path / "toy"
    top.mkdir()
    content = random.Random(7).randbytes(24 << 20)
    (top / "model.safetensors").write_bytes(content)
    (top / "config.json").write_bytes(b"{}")
    operator = Operator(fleet, tmp_path / "desk", names, extra=EXTRA)
    before = snapshot.look(fleet, names)
    where = [word for name in names for word in ("--hosts", name)]
    answer = operator.run(
        "models", "stage", f"file://{top}", *where, "--image", fleet.images["v0.11.2"], "--yes"
    )
    try:
        assert answer.exit == 0, answer
        path = answer.fields["path"]
        asked = f"cd '{path}' && sha256sum -c .gpufleet-manifest >/dev/null && sha256sum <model.safetensors"
        digest = hashlib.sha256(content).hexdigest()
        assert [fleet.ssh(name, asked).split()[0] for name in names] == [digest, digest]
        taken = [line for line in answer.stderr.splitlines() if "stage from" in line]
        assert taken, answer
        assert snapshot.settled_as(fleet, before) == []
    finally:
        for name in names:
            fleet.ssh(name, "rm -rf .gpufleet/models")
