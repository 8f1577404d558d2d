"""The fleet of real hosts that this suite stands on: built once a session, removed at its end, timed.

Where it cannot stand, the suite is skipped by name with the reason and the way to get it; with CI or
GPUFLEET_REQUIRE_REAL in the environment that is a failure instead, so that a silent skip cannot pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import machine
from tests.real.fleet import Fleet, leftovers, only_one, sweep
from tests.real.hosts import Site

HERE = Path(__file__).parent
HOSTS = int(os.environ.get("GPUFLEET_REAL_HOSTS", "9"))
CASES = pytest.StashKey[list[str]]()
TOOK = pytest.StashKey[dict[str, float]]()
BYSTANDER = "somebody-elses"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CASES] = []
    config.stash[TOOK] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def _can_stand_here() -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail("the suite on real hosts owns the machine's network names: run it without -n")
    missing = machine.missing_parts()
    if not missing:
        return
    reason = f"real hosts cannot stand here: {'; '.join(missing)}. How to get it: {machine.HOW_TO_GET_IT}"
    if os.environ.get("CI") or os.environ.get("GPUFLEET_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def fleet(_can_stand_here: None, pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """Hosts `h1`... with sshd, Docker, GPUs of the double, and somebody else's container on each."""
    site = Site()
    with only_one(site):
        sweep(site)
        standing = Fleet(site, took=pytestconfig.stash[TOOK])
        try:
            standing.up(HOSTS)
            for host in standing.hosts.values():
                settle_bystander(standing, host.name)
            yield standing
        finally:
            standing.down()
            left = leftovers(site)
        assert not left, f"the real hosts left something behind: {left}"


def settle_bystander(fleet: Fleet, name: str) -> None:
    """A container that no test may touch: it must be there, the same one, after everything."""
    fleet.hosts[name].inside(
        "docker", "run", "-d", "--name", BYSTANDER, "--restart", "always", "--stop-signal", "KILL",
        "--entrypoint", "sleep", fleet.images["v0.11.2"], "1000000",
    )  # fmt: skip


@pytest.fixture(scope="session")
def cases(pytestconfig: pytest.Config) -> list[str]:
    """Every case appends its name when its assertions held; the count is printed at the end."""
    return pytestconfig.stash[CASES]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    took = config.stash.get(TOOK, {})
    if took:
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
        terminalreporter.write_line(f"real hosts: {phases}")
    cases = config.stash.get(CASES, [])
    if cases:
        terminalreporter.write_line(f"real hosts: {len(set(cases))} distinct fault cases passed")
