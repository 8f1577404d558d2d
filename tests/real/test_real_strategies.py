"""Pools replaced by every strategy while clients stream through a proxy: no request fails and no stream is cut.

Each play has a trio, a desk and a proxy of its own. What runs on the hosts is asked by plain ssh.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.real import faults, snapshot
from tests.real.desk import Answer, Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene, Trio, tidy
from tests.real.stage import Stage, selected
from tests.real.traffic import PACE, Traffic, proxied, streaming

CLIENTS = 6


@dataclass(frozen=True)
class Play:
    """A story on three hosts under traffic."""

    name: str
    run: Callable[[Stand], None]


@dataclass
class Stand:
    """Where a play stands: a desk, three hosts, a proxy, clients."""

    scene: Scene
    place: str
    gpus: int = 1

    def deploy(self, tag: str, strategy: object = "all-at-once") -> Answer:
        """Deploy the pool `chat` with this image and strategy."""
        changes = {
            "engine": {"image": f"{{{tag}}}", "env": PACE},
            "slice": {"gpus": self.gpus},
            "strategy": strategy,
        }
        return self.scene.operator.run("pool", "deploy", "-f", str(self.scene.define(changes)), "--yes")

    def run(self, *words: str) -> Answer:
        return self.scene.operator.run(*words)

    def versions(self) -> list[str]:
        """The version that each running replica's image has, asked by ssh."""
        asked = "docker ps --filter label=gpufleet.pool=chat --format '{{.Label \"org.opencontainers.image.version\"}}'"
        return [version for name in self.scene.trio for version in self.scene.fleet.ssh(name, asked).split()]

    def containers(self) -> snapshot.Snapshot:
        return snapshot.look(self.scene.fleet, self.scene.trio)


def expect(answer: Answer, code: int = 0) -> None:
    assert answer.exit == code, answer
    assert "Traceback" not in answer.text, answer


def under_traffic(stand: Stand, act: Callable[[], None]) -> Traffic:
    """Do something while clients stream before, during and after it."""
    with streaming(stand.place, clients=CLIENTS) as traffic:
        traffic.wait_for(CLIENTS)
        act()
        traffic.wait_for(CLIENTS)
    traffic.assert_unharmed(at_least=3 * CLIENTS)
    return traffic


def rolling_in_place(stand: Stand) -> None:
    """One replica a host that takes all its GPUs: each makes room for its successor; then the first revision again."""
    stand.gpus = 4
    expect(stand.deploy("v0.11.2"))

    def roll() -> None:
        expect(stand.deploy("v0.12.0", "rolling"))
        assert stand.versions() == ["v0.12.0"] * 3

    traffic = under_traffic(stand, roll)
    assert set(traffic.members) == {f"{name}/0" for name in stand.scene.trio}

    def back() -> None:
        expect(stand.run("pool", "rollback", "chat", "--to", "1", "--strategy", "rolling", "--yes"))
        assert stand.versions() == ["v0.11.2"] * 3

    assert all(len(found) == 2 for found in stand.containers().values()), "the old containers are to be gone"
    under_traffic(stand, back)


def rolling_back(stand: Stand) -> None:
    """The last of three new replicas never gets ready: two that serve already are taken back under traffic."""
    stand.gpus = 4
    expect(stand.deploy("v0.11.2"))
    before = stand.containers()

    def fail() -> None:
        with faults.engine_behaves(stand.scene.host, "crash 0.12.0"):
            expect(stand.deploy("v0.12.0", "rolling"), 9)
        assert snapshot.settled_as(stand.scene.fleet, before) == []

    under_traffic(stand, fail)


def blue_green(stand: Stand) -> None:
    """The new set stands beside the old one; all requests are switched at once."""
    expect(stand.deploy("v0.11.2"))

    def switch() -> None:
        expect(stand.deploy("v0.12.0", "blue-green"))
        assert stand.versions() == ["v0.12.0"] * 3

    under_traffic(stand, switch)


def scaling(stand: Stand) -> None:
    """More replicas, then fewer: those that go finish what they have."""
    expect(stand.deploy("v0.11.2"))

    def grow_and_shrink() -> None:
        expect(stand.run("pool", "scale", "chat", "6", "--yes"))
        assert len(stand.versions()) == 6
        expect(stand.run("pool", "scale", "chat", "2", "--yes"))
        assert len(stand.versions()) == 2

    under_traffic(stand, grow_and_shrink)


CANARY = {"kind": "canary", "observe": 3, "min_requests": 6, "deadline": 60}


def bad_canary(stand: Stand) -> None:
    """The new version's first tokens come a second late: the canary is judged by that and everything goes back."""
    expect(stand.deploy("v0.11.2"))
    before = stand.containers()

    def fail() -> None:
        with ExitStack() as stack:
            for name in stand.scene.trio:
                stack.enter_context(faults.engine_behaves(stand.scene.fleet.hosts[name], "tardy 0.12.0"))
            answer = stand.deploy("v0.12.0", CANARY)
        expect(answer, 9)
        assert "first token" in answer.text, answer
        assert snapshot.settled_as(stand.scene.fleet, before) == []

    traffic = under_traffic(stand, fail)
    assert len(traffic.members) > len(stand.scene.trio), "no request went to the canary"


def good_canary(stand: Stand) -> None:
    """A canary that does as well as the others; they follow, one after the other."""
    expect(stand.deploy("v0.11.2"))

    def follow() -> None:
        expect(stand.deploy("v0.12.0", CANARY))
        assert stand.versions() == ["v0.12.0"] * 3

    under_traffic(stand, follow)


PLAYS = (
    Play("rolling in place, and back to a pruned revision", rolling_in_place),
    Play("rolling that turns back", rolling_back),
    Play("bad canary", bad_canary),
    Play("good canary", good_canary),
    Play("blue-green", blue_green),
    Play("scaling", scaling),
)


@pytest.fixture(scope="module")
def stage(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stage[Play]]:
    """The selected plays, one a trio at a time."""
    desks, numbers = tmp_path_factory.mktemp("desks"), itertools.count()

    def played(play: Play, trio: Trio) -> None:
        tidy(fleet, trio)
        operator = Operator(fleet, desks / str(next(numbers)), trio, extra=EXTRA)
        with ExitStack() as stack:
            stack.callback(tidy, fleet, trio)
            place = stack.enter_context(proxied(operator))
            play.run(Stand(Scene(fleet, operator, trio), place))

    with Stage(selected(request, "play", Play), played, trios=fleet.trios) as stage:
        yield stage


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_no_request_fails_and_no_stream_is_cut(play: Play, stage: Stage[Play], cases: list[str]) -> None:
    stage.wait_for(play.name)
    cases.append(f"under traffic / {play.name}")
