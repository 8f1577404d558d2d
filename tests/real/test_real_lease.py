"""A lease that somebody left on a host: held, expired, expired with an open run; and the way to break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import snapshot
from tests.real.desk import Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene

PAIR = ("h1", "h2")
RUN = "20260101T000000-abcdef"

LEAVE = """
umask 077
mkdir -p ~/.gpufleet/lease ~/.gpufleet/runs/{run}
cd ~/.gpufleet
then=$(( $(date +%s) - {age} ))
printf '{{"token":"{token}","run":"{run}","seat":"5ea7","holder":"ci-runner-7","operation":"deploy pool chat","started":%s}}\\n' $then > lease/lease.json
printf '%s\\n' $then > lease/beat-{token}
{more}
"""


@pytest.fixture
def operator(fleet: Fleet, tmp_path: Path) -> Iterator[Operator]:
    yield Operator(fleet, tmp_path, PAIR, extra=EXTRA)
    for name in PAIR:
        fleet.ssh(
            name,
            "rm -rf ~/.gpufleet/lease ~/.gpufleet/runs; docker ps -aq --filter label=gpufleet.pool=chat | xargs -r docker rm -f",
        )


def leave_lease(fleet: Fleet, host: str, *, age: int, open_run: bool) -> None:
    """What a run that was killed leaves on a host; `age` in seconds since its last heartbeat."""
    more = f": > runs/{RUN}/journal.jsonl; : > runs/{RUN}/acted" if open_run else f"rm -rf runs/{RUN}"
    fleet.ssh(host, LEAVE.format(run=RUN, age=age, token="a1" * 8, more=more))


def deploy(operator: Operator) -> tuple[str, ...]:
    definition = Scene(operator.fleet, operator).define({"hosts": list(PAIR), "replicas": 2})
    return ("pool", "deploy", "-f", str(definition), "--yes")


def test_a_living_lease_is_respected_and_says_whose_it_is(fleet: Fleet, operator: Operator) -> None:
    before = snapshot.look(fleet, PAIR)
    leave_lease(fleet, "h2", age=10, open_run=True)
    answer = operator.run(*deploy(operator))
    assert answer.exit == 6, answer
    for words in ("ci-runner-7", "deploy pool chat", RUN, "h2"):
        assert words in answer.text, answer
    assert snapshot.difference(before, snapshot.look(fleet, PAIR)) == []
    assert fleet.ssh("h1", "ls -d ~/.gpufleet/lease 2>/dev/null; true") == "", (
        "the other host's lease was given back"
    )
    assert "ci-runner-7" in fleet.ssh("h2", "cat ~/.gpufleet/lease/lease.json")


def test_an_expired_lease_of_a_run_that_did_nothing_is_taken_over(fleet: Fleet, operator: Operator) -> None:
    leave_lease(fleet, "h2", age=2_420_000, open_run=False)
    answer = operator.run(*deploy(operator))
    assert answer.exit == 0, answer
    assert fleet.ssh("h2", "ls -d ~/.gpufleet/lease 2>/dev/null; true") == ""


def test_an_expired_lease_of_an_open_run_offers_resume_and_undo_first(
    fleet: Fleet, operator: Operator
) -> None:
    leave_lease(fleet, "h2", age=2_420_000, open_run=True)
    refused = operator.run(*deploy(operator))
    assert refused.exit == 6, refused
    assert "change resume" in refused.text, refused
    assert "change undo" in refused.text, refused
    broken = operator.run("change", "unlock", "h2", "--reason", "the runner was thrown away", "--yes")
    assert broken.exit == 0, broken
    answer = operator.run(*deploy(operator))
    assert answer.exit == 0, answer


def test_a_lease_cannot_be_broken_without_a_reason(fleet: Fleet, operator: Operator) -> None:
    leave_lease(fleet, "h2", age=10, open_run=True)
    answer = operator.run("change", "unlock", "h2", "--yes")
    assert answer.exit == 2, answer
    assert "ci-runner-7" in fleet.ssh("h2", "cat ~/.gpufleet/lease/lease.json")
