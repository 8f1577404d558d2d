"""Faults in the middle of a pool that is replaced step by step: (fault, phase, strategy), one row a case.

The pool stands on two hosts of a trio. Rolling and canary replace in place: with rolling the host breaks whose turn
comes when the other one serves its new replica already, with canary the one that has the canary. Blue-green puts the new
set beside the old one. `at` is the journal record at which the fault begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.real import cases, faults
from tests.real.scene import FIRST_PORT, Injector, Midway, Scene, nothing

DRAIN, STOP = "intent drain-{host}-*", "intent stop-{host}-*"
START, STARTED = "intent start-{host}-* do", "outcome start-{host}-* do succeeded"
GATE, SETTLE = "intent gate-{host}-* do", "intent settle-{host}* do"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyCase:
    """A fault at a phase of a strategy.

    Attributes:
        exits: exit codes that are right for it. 0: it survives, all is as asked; 9: all is as before. With 10 and 11
            among them the host is out of reach for a while: all is as before once `change undo` has run.
    """

    strategy: str
    fault: str
    phase: str
    inject: Injector
    exits: tuple[int, ...]
    at: str = ""
    midway: Midway | None = None
    image: str = "{v0.12.0}"

    @property
    def name(self) -> str:
        return f"{self.fault} / {self.phase} / {self.strategy}"

    @property
    def in_place(self) -> bool:
        return self.strategy != "blue-green"

    @property
    def away(self) -> bool:
        """Whether the host may be out of reach at the end."""
        return len(self.exits) > 1


def engine(behaviour: str) -> Injector:
    """New engines of the host behave like this; those of the old version do not."""
    return lambda s: faults.engine_behaves(s.host, f"{behaviour} 0.12.0")


def service(name: str, verb: str) -> Injector:
    return lambda s: faults.service(s.host, name, verb)


@contextmanager
def ports_taken(scene: Scene) -> Iterator[None]:
    """The ports that the new replica may be given are taken by processes."""
    with (
        faults.port_taken_by_process(scene.host, FIRST_PORT + 1),
        faults.port_taken_by_process(scene.host, FIRST_PORT + 2),
    ):
        yield


def link(scene: Scene) -> AbstractContextManager[None]:
    return faults.link_cut(scene.host)


def plug(scene: Scene) -> AbstractContextManager[None]:
    return faults.powered_off(scene.fleet, scene.host)


BACK, AWAY = (9,), (9, 10, 11)

EVERYWHERE: tuple[tuple[str, str, str, Injector, tuple[int, ...], Midway | None], ...] = (
    ("docker stopped", "pull", "intent pull-{host} do", service("docker", "stop"), AWAY, None),
    ("link cut", "pull", "intent pull-{host} do", link, AWAY, None),
    ("port taken", "start", START, ports_taken, BACK, None),
    ("disk full", "start", START, lambda s: faults.disk_full(s.host, "/var/lib/docker"), AWAY, None),
    ("home disk full", "start", START, lambda s: faults.disk_full(s.host, "/home"), AWAY, None),
    ("docker killed", "start", START, service("docker", "kill"), AWAY, None),
    ("link cut", "start", START, link, AWAY, None),
    ("Ctrl-C", "start", STARTED, nothing, BACK, cases.interrupt),
    ("engine crashes", "gate", "", engine("crash"), BACK, None),
    ("engine serves another model", "gate", "", engine("other-model"), BACK, None),
    ("host powered off", "gate", GATE, plug, AWAY, None),
    ("session killed", "settle", SETTLE, cases.sessions_killed, (0,), None),
)
IN_PLACE: tuple[tuple[str, str, str, Injector, tuple[int, ...], Midway | None], ...] = (
    ("Ctrl-C", "drain", DRAIN, nothing, BACK, cases.interrupt),
    ("docker killed", "stop", STOP, service("docker", "kill"), AWAY, None),
    ("CUDA out of memory", "gate", "", engine("cuda-oom"), BACK, None),
    ("link cut", "stop", STOP, link, AWAY, None),
)


def _rows(strategy: str) -> Iterator[StrategyCase]:
    rows = EVERYWHERE if strategy == "blue-green" else (*EVERYWHERE, *IN_PLACE)
    for fault, phase, at, inject, exits, midway in rows:
        yield StrategyCase(
            strategy=strategy, fault=fault, phase=phase, at=at, inject=inject, exits=exits, midway=midway
        )


CASES = tuple(case for strategy in ("rolling", "canary", "blue-green") for case in _rows(strategy))
