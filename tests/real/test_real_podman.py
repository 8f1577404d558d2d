"""The commands of a deploy against the podman of this machine, and what the probe reads of its containers.

It needs none of the hosts of this suite: podman stands in namespaces of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.change.model import Holds
from gpufleet.deploy import commands
from gpufleet.deploy.commands import Dialect, Drain
from gpufleet.deploy.pull import pull
from gpufleet.deploy.staging import archive, images, looks
from gpufleet.engine.model import EngineContainer
from gpufleet.hosts.model import ContainerFact, Known, RuntimeFact
from gpufleet.hosts.probes import container, runtime
from gpufleet.hosts.probes.script import Section, command, parse
from gpufleet.inventory.model import Become, Runtime
from gpufleet.names import HostName, RunId, StepId
from gpufleet.pools.model import Limits
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit
from tests.kit import podman_house
from tests.kit.shell_hosts import ShellHosts

IMAGE = "localhost/engine:v1"
RUN, STEP = RunId("20260101T000000-abc123"), StepId("start-h1-0")
HOST = HostName("h1")


class House:
    """One host with a podman, asked as a deploy asks."""

    def __init__(self, hosts: ShellHosts, program: Path) -> None:
        self._hosts = hosts
        self.program = str(program)
        self.sections = self._probe()

    def ask(self, asked: Command) -> Exit:
        answer = self._hosts.execute(HOST, asked)
        assert isinstance(answer, Exit), answer
        return answer

    def tell(self, asked: Command) -> str:
        answer = self.ask(asked)
        assert answer.ok, answer
        return answer.stdout

    def podman(self, *words: str) -> Exit:
        return self.ask(Command(argv=(self.program, *words), timeout=60.0, mutates=True))

    def _probe(self) -> dict[str, Section]:
        asked = command(runtime=Runtime.PODMAN, runtime_path=self.program, become=Become.NEVER)
        answer = self.ask(asked)
        return dict(parse(answer.stdout, answer.stderr))

    def fact(self) -> RuntimeFact:
        found = runtime.parse(self.sections, user="root", root_shell=False).runtime
        assert isinstance(found, Known), found
        return found.value

    def containers(self) -> dict[str, ContainerFact]:
        found = container.parse(self._probe()["containers"].text)
        assert isinstance(found, Known), found
        return {one.name: one for one in found.value}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    reason = podman_house.missing()
    if reason:
        if os.environ.get("GPUFLEET_REQUIRE_REAL"):
            pytest.fail(f"podman cannot run here: {reason}")
        pytest.skip(f"podman cannot run here: {reason}")
    base = tmp_path_factory.mktemp("podman")
    with podman_house.standing(base) as enter:
        standing = House(ShellHosts(base / "homes", shell=(*enter, "/bin/sh")), base / "bin" / "podman")
        made = standing.podman("import", "-q", str(podman_house.image(base)), IMAGE)
        assert made.ok, made
        yield standing


@pytest.fixture
def dialect(house: House) -> Dialect:
    """As the facts of the host say, without sudo."""
    return Dialect.of(house.fact())


def words(
    dialect: Dialect, name: str, *, port: int, device: str = "GPU-0", entrypoint: str = "vllm"
) -> tuple[str, ...]:
    engine = EngineContainer(
        image=IMAGE,
        entrypoint=entrypoint,
        arguments=("serve", "m", "--max-num-seqs", "4"),
        stop_timeout=5,
    )
    return commands.run_words(
        dialect,
        engine,
        name=name,
        labels={"gpufleet.run": RUN, "gpufleet.step": STEP, "gpufleet.pool": "chat"},
        devices=(device,),
        publish=f"127.0.0.1:{port}",
        limits=Limits(memlock="inherit"),
    )


def test_the_probe_reads_what_this_podman_says(house: House) -> None:
    fact = house.fact()
    assert fact.kind == "podman"
    assert fact.rootless == Known(False)
    assert fact.names_devices
    assert house.podman("version", "--format", "{{.Client.Version}}").stdout.strip() == fact.version
    assert isinstance(fact.root, Known)
    assert fact.root.value.endswith("/root")


def test_a_replica_is_started_found_stopped_restored_and_removed(house: House, dialect: Dialect) -> None:
    environment: dict[str, str | Secret[str]] = {"TOKEN": Secret('s3cret "quoted" $x', reference="${env:T}")}
    start = commands.start(dialect, RUN, STEP, environment, words(dialect, "gf-chat-0", port=18001))
    house.tell(pull(dialect, IMAGE))
    assert house.tell(commands.image(dialect, IMAGE)).strip()
    house.tell(start)
    house.tell(start)  # again: what the first one left is removed before
    found = house.containers()["gf-chat-0"]
    policy = commands.UNTIL_READY if dialect.updates else commands.WHEN_READY
    assert (found.state, found.ports, found.devices) == ("running", (18001,), ("GPU-0",))
    assert (found.restart_policy, found.image) == (policy, IMAGE)
    assert found.labels["gpufleet.pool"] == "chat"
    assert house.podman("exec", "gf-chat-0", "cat", "/proc/1/environ").stdout.count('s3cret "quoted" $x') == 1
    assert "s3cret" not in house.podman("ps", "-a", "--no-trunc").stdout
    assert house.tell(commands.state(dialect, RUN, STEP)).split()[0] == "running"
    if dialect.updates:
        house.tell(commands.policy(dialect, RUN, (STEP,), commands.WHEN_READY))
    assert house.tell(commands.policies(dialect, RUN, (STEP,))).split() == ["running", "always"]
    house.tell(commands.stop(dialect, found.id, 5))
    assert house.tell(commands.inspect(dialect, found.id)).split()[0] == "exited"
    house.tell(commands.restore(dialect, found.id, "always"))
    assert house.tell(commands.inspect(dialect, found.id)).split() == ["running", "always"]
    assert house.tell(commands.by_id(dialect, found.id)).strip() == found.id
    house.tell(commands.remove(dialect, found.id, 5, Drain(metrics="", busy="")))
    assert house.tell(commands.by_id(dialect, found.id)) == ""


def test_what_a_failed_start_left_is_undone(house: House, dialect: Dialect) -> None:
    for name, changes, told in (
        ("gf-cdi", {"device": "GPU-7"}, "unresolvable CDI devices nvidia.com/gpu=GPU-7"),
        ("gf-program", {"entrypoint": "nosuch"}, "executable file `nosuch` not found"),
    ):
        asked = words(dialect, name, port=18002, **changes)
        answer = house.ask(commands.start(dialect, RUN, STEP, {}, asked))
        assert not answer.ok
        assert told in answer.stderr
        assert house.containers()[name].state == "created"
        house.tell(commands.unstart(dialect, RUN, STEP))
        assert name not in house.containers()
        assert house.tell(commands.state(dialect, RUN, STEP)) == ""


def test_a_port_that_is_taken_is_named(house: House, dialect: Dialect) -> None:
    first, second = StepId("start-h1-1"), StepId("start-h1-2")
    house.tell(commands.start(dialect, RUN, first, {}, labelled(dialect, "gf-one", first)))
    answer = house.ask(commands.start(dialect, RUN, second, {}, labelled(dialect, "gf-two", second)))
    assert "address already in use" in answer.stderr
    for step in (first, second):
        house.tell(commands.unstart(dialect, RUN, step))
    assert not {"gf-one", "gf-two"} & house.containers().keys()


def labelled(dialect: Dialect, name: str, step: StepId) -> tuple[str, ...]:
    return tuple(word.replace(STEP, step) for word in words(dialect, name, port=18003))


def test_gpus_by_the_flag_of_docker_are_no_gpus_here(house: House, dialect: Dialect) -> None:
    """Why CDI is the only way: the flag is taken and nothing comes of it."""
    asked = words(replace(dialect, names_devices=False), "gf-flag", port=18004)
    house.tell(commands.start(dialect, RUN, STEP, {}, asked))
    assert house.containers()["gf-flag"].devices == ()
    house.tell(commands.unstart(dialect, RUN, STEP))


def test_an_image_is_saved_loaded_and_run_by_its_id(house: House, dialect: Dialect, tmp_path: Path) -> None:
    """Podman keeps the id through an archive, takes it with `sha256:`, and lets go of it when nobody uses it."""
    seen = images.read_look(house.tell(images.look(dialect, IMAGE)))
    assert seen is not None
    assert seen.id.startswith("sha256:")
    final, owner = str(tmp_path / "image"), f"{RUN}/h1"
    house.tell(archive.save(dialect, final, IMAGE, seen.id, seen.size))
    assert looks.whole(house.ask(archive.there(dialect, final)), (final,)) == Holds()
    assert house.podman("rmi", IMAGE).ok
    try:
        assert images.read_look(house.tell(images.look(dialect, seen.id))) == images.ImageOnHost()
        house.tell(archive.load(dialect, final, seen.id, owner, seen.size))
        look = archive.loaded(dialect, final, seen.id, owner)
        assert looks.image_loaded(house.ask(look), (seen.id,)) == Holds()
        by_id = tuple(seen.id if word == IMAGE else word for word in words(dialect, "gf-by-id", port=18021))
        house.tell(commands.start(dialect, RUN, STEP, {}, by_id))
        assert house.containers()["gf-by-id"].image_id.removeprefix("sha256:") == seen.id.removeprefix(
            "sha256:"
        )
        house.tell(archive.unload(dialect, final, seen.id, owner))
        assert looks.image_loaded(house.ask(look), (seen.id,)) == Holds()  # somebody uses it
        house.tell(commands.unstart(dialect, RUN, STEP))
        house.tell(archive.drop(dialect, f"{final}.none"))
        (tmp_path / "image.loaded").write_text(f"{owner}\n")
        house.tell(archive.unload(dialect, final, seen.id, owner))
        assert images.read_look(house.tell(images.look(dialect, seen.id))) == images.ImageOnHost()
    finally:
        house.tell(commands.unstart(dialect, RUN, STEP))
        house.tell(archive.load(dialect, final, seen.id, "another-run", seen.size))
