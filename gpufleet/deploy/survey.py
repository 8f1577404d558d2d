"""Looking at hosts before a plan: all of them answer and none has a fault that a deploy would trip over, or nothing begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpufleet.clock import Clock
from gpufleet.errors import ErrorRow, FleetError, HostUnreachable, PreflightFailed
from gpufleet.hosts.doctor import diagnose
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import HostFacts, Unknown
from gpufleet.hosts.symptoms import Severity
from gpufleet.inventory.model import Host
from gpufleet.names import HostName
from gpufleet.remote.transport import Transport

ONE_GPU = frozenset({"gpu-reset", "gpu-memory-unknown"})
"""Findings about a single GPU: a plan leaves that GPU alone and may use the others."""


def survey(
    transport: Transport, hosts: Sequence[Host], *, clock: Clock, forks: int
) -> dict[HostName, HostFacts]:
    """Facts of every host.

    Raises:
        HostUnreachable: with a row for each host that was not reached; nothing was changed.
    """
    answers = gather(transport, hosts, clock=clock, forks=forks)
    failed = {name: answer for name, answer in answers.items() if isinstance(answer, FleetError)}
    if failed:
        raise _unreachable(failed, len(hosts))
    return {name: answer for name, answer in answers.items() if isinstance(answer, HostFacts)}


def glance(
    transport: Transport, hosts: Sequence[Host], *, clock: Clock, forks: int, warn: Callable[[str], None]
) -> dict[HostName, HostFacts]:
    """Facts of the hosts that answer; one that does not is only told, because nothing new is put there."""
    found: dict[HostName, HostFacts] = {}
    for name, answer in gather(transport, hosts, clock=clock, forks=forks).items():
        if not isinstance(answer, HostFacts):
            why = f"was not reached: they stay ({answer.summary})"
        elif isinstance(answer.containers, Unknown):
            why = f"its containers are not known: they stay ({answer.containers.reason})"
        else:
            found[name] = answer
            continue
        warn(f"{name} has replicas of this pool by its record and {why}")
    return found


def _unreachable(failed: Mapping[HostName, FleetError], asked: int) -> FleetError:
    """The error itself when it is about one host; one error with a row a host otherwise."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    rows = tuple(
        ErrorRow(name, error.summary, error.hints[0] if error.hints else "", error.code)
        for name, error in failed.items()
    )
    return HostUnreachable(f"{len(failed)} of {asked} hosts were not reached; nothing was changed", rows=rows)


def preflight(hosts: Sequence[Host], facts: Mapping[HostName, HostFacts]) -> None:
    """Refuse when a host cannot run what is asked of it.

    Raises:
        PreflightFailed: with a row for each fault and its fix; nothing was changed.
    """
    rows = tuple(
        ErrorRow(host.name, finding.message, finding.fix, finding.code)
        for host in hosts
        for finding in diagnose(facts[host.name], host)
        if finding.severity is Severity.ERROR and finding.code not in ONE_GPU
    )
    if not rows:
        return
    sick = tuple(dict.fromkeys(row.where for row in rows))
    raise PreflightFailed(
        f"{len(sick)} of {len(hosts)} hosts cannot take a replica; nothing was changed",
        where=", ".join(sick),
        rows=rows,
        hints=("`gpufleet hosts check` looks again", "leave a host out with `!NAME` in the pool's hosts"),
    )
