"""One fault case as data, and the way it is played: deploy, break at a chosen moment, look at every host by plain ssh."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.real import snapshot
from tests.real.desk import Answer, Operator, Started
from tests.real.fleet import Fleet
from tests.real.hosts import RealHost

Trio = tuple[str, str, str]
"""Hosts that a case is played on; the last is the one that breaks."""

FIRST_PORT, LAST_PORT = 8000, 8019

EXTRA = f"""\
  connect_timeout: 2
  ports: {{first: {FIRST_PORT}, last: {LAST_PORT}}}
"""


@dataclass(slots=True)
class Scene:
    """Where a case is played: three hosts of the fleet and a desk."""

    fleet: Fleet
    operator: Operator
    trio: Trio = ("h1", "h2", "h3")
    damage: ExitStack = field(default_factory=ExitStack)

    @property
    def host(self) -> RealHost:
        """The one that breaks."""
        return self.fleet.hosts[self.trio[2]]

    def image(self, tag: str = "v0.11.2") -> str:
        return self.fleet.images[tag]

    def _named(self, image: str) -> str:
        """`{v0.12.0}` as that image's reference by digest, `{repository}` as its name without one."""
        if image.startswith("{repository}"):
            return image.replace("{repository}", self.image().partition("@")[0])
        return self.image(image.strip("{}")) if image.startswith("{") else image

    def define(self, changes: Mapping[str, object] | None = None, pool: str = "chat") -> Path:
        """Write a pool definition with short waits; `changes` are put over it key by key."""
        definition: dict[str, object] = {
            "pool": pool,
            "model": "some/model",
            "replicas": 3,
            "hosts": list(self.trio),
            "slice": {"gpus": 1},
            "engine": {"image": self.image()},
            "gate": {"every": 0.1, "stall": 60, "within": 120},
        }
        for key, value in (changes or {}).items():
            old = definition.get(key)
            definition[key] = (
                {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
            )
        engine = definition["engine"]
        if isinstance(engine, dict):
            engine["image"] = self._named(str(engine["image"]))
        if definition["hosts"] == "faulty":
            definition["hosts"] = [self.host.name]
        path = self.operator.desk / f"{pool}.yaml"
        path.write_text(_yaml(definition))
        return path


def _yaml(value: Mapping[str, object]) -> str:
    """JSON is YAML; one key a line, so that messages name a line."""
    return "".join(f"{key}: {json.dumps(item)}\n" for key, item in value.items())


Injector = Callable[[Scene], AbstractContextManager[object]]
Midway = Callable[[Scene, Started], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault at a phase and what must be true afterwards.

    Attributes:
        at: pattern of the journal record at which the fault begins, `{host}` is the host that breaks; empty: before
            the command starts.
        says: texts of which each must stand in the answer, whatever its form.
        midway: what is done while the command runs on, once the fault has begun; damage goes to `scene.damage`.
        exits: exit codes that are right for it; mostly one.
        ends: `as-before`; `undo` when the host must come back first and `change undo` finishes; `committed` when the
            deploy is expected to survive the fault; `resume` when `change resume` finishes it.
        pool: changes of the pool definition.
        in_place: the fault meets a pool that is there already and whose replicas must make room.
        user: the account.
        alone: the fault reaches beyond its own three hosts, so nothing else may be played meanwhile.
    """

    fault: str
    phase: str
    inject: Injector
    exits: tuple[int, ...]
    says: tuple[str, ...] = ()
    at: str = ""
    midway: Midway | None = None
    ends: str = "as-before"
    names_host: bool = True
    pool: Mapping[str, object] = field(default_factory=dict)
    in_place: bool = False
    user: str = "ops"
    alone: bool = False

    @property
    def name(self) -> str:
        """`fault / phase`, with the strategy when it is not the ordinary one."""
        return f"{self.fault} / {self.phase}{' / in place' if self.in_place else ''}"


def play(case: Case, scene: Scene) -> None:
    """Play a case and make its assertions."""
    before = snapshot.look(scene.fleet, scene.trio)
    answer = _deploy(case, scene)
    _judge(case, answer, scene.host.name)
    if case.ends in {"undo", "resume"}:
        run = answer.fields.get("run")
        assert run, answer
        finished = scene.operator.run("change", case.ends, str(run), "--yes")
        assert finished.exit == (0 if case.ends == "resume" else 9) or finished.exit == 0, finished
    if case.ends in {"committed", "resume"}:
        _assert_serving(scene, before)
        return
    assert snapshot.settled_as(scene.fleet, before) == [], answer
    traces = _traces(scene)
    assert traces == {}, f"{traces}: {answer}"


def _deploy(case: Case, scene: Scene) -> Answer:
    """Run the deploy with the fault in it; when this returns, the fault is repaired."""
    definition = scene.define(case.pool)
    words = ("pool", "deploy", "-f", str(definition), "--yes")
    with scene.damage:
        if not case.at:
            scene.damage.enter_context(case.inject(scene))
            return scene.operator.run(*words)
        with scene.operator.pause_at(case.at.format(host=scene.host.name), *words) as started:
            assert started.wait_until_reached(), f"no record like `{case.at}`: {started.answer()}"
            scene.damage.enter_context(case.inject(scene))
            started.let_go()
            if case.midway:
                case.midway(scene, started)
            return started.answer()


def _judge(case: Case, answer: Answer, faulty: str) -> None:
    assert answer.exit in case.exits, answer
    assert answer.fields.get("exit") == answer.exit, answer
    assert "Traceback" not in answer.text, answer
    for words in case.says:
        assert words.lower() in answer.text.lower(), f"`{words}` is not said: {answer}"
    if case.names_host and answer.exit:
        assert faulty in answer.stdout, answer


def _assert_serving(scene: Scene, before: snapshot.Snapshot) -> None:
    """Every earlier container is there and exactly one replica a host serves; it is removed afterwards."""
    after = snapshot.look(scene.fleet, scene.trio)
    extra = {name: [line for line in after[name] if line not in before[name]] for name in scene.trio}
    try:
        for name in scene.trio:
            assert not [line for line in before[name] if line not in after[name]], (before, after)
            assert len(extra[name]) == 1, extra
            assert "\trunning\t" in extra[name][0], extra
            port = extra[name][0].split(":")[-1].partition("-")[0]
            assert port.isdigit(), extra
    finally:
        for name in scene.trio:
            for line in extra[name]:
                scene.fleet.ssh(name, f"docker rm -f {line.split()[0]}")


def _traces(scene: Scene) -> dict[str, str]:
    """Lease and environment files that are still on a host: after an ended run there must be none."""
    asked = "ls -A ~/.gpufleet/env 2>/dev/null; ls -d ~/.gpufleet/lease 2>/dev/null; true"
    found = {name: scene.fleet.ssh(name, asked, user="ops").strip() for name in scene.trio}
    return {name: text for name, text in found.items() if text}


TIDY = """
docker ps -aq --filter label=gpufleet.pool | xargs -r docker rm -f
"""
FORGET = """
docker images -q --filter label=org.opencontainers.image.version=v0.12.0 | xargs -r docker rmi -f
docker images -q --filter label=org.opencontainers.image.version=v0.12.0-large | xargs -r docker rmi -f
rm -rf /home/*/.gpufleet
"""


def tidy(fleet: Fleet, names: Sequence[str], *, containers: bool = True) -> None:
    """Make hosts as they were at first, whatever an earlier case left: no traces, later images gone again."""
    script = (TIDY if containers else "") + FORGET
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: fleet.hosts[name].shell(script, check=False), names))


def nothing(_: Scene) -> AbstractContextManager[None]:
    """No damage on any host: the fault is in the definition or at the desk."""
    return nullcontext()
