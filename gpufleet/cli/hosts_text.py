"""Facts and findings as tables for people; a value that is not known is a question mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from gpufleet.cli.console import table
from gpufleet.errors import FleetError
from gpufleet.hosts.model import Fact, GpuFact, HostFacts, Known, MigInstance
from gpufleet.names import HostName

if TYPE_CHECKING:
    from gpufleet.hosts.doctor import Finding

T = TypeVar("T")
_GPU_COLUMNS = ("HOST", "GPU", "NAME", "MEMORY", "USED", "UTIL", "TEMP", "MIG", "UUID")
_HOST_COLUMNS = ("HOST", "RUNTIME", "CONTAINERS", "DRIVER", "TOOLKIT", "KERNEL", "DISK FREE", "LEASE")


def facts(seen: Mapping[HostName, HostFacts | FleetError]) -> str:
    """Two tables, hosts and their GPUs with the slices under them; then who was not reached."""
    hosts = [_host(outcome) for outcome in seen.values() if isinstance(outcome, HostFacts)]
    gpus = [row for outcome in seen.values() if isinstance(outcome, HostFacts) for row in _gpus(outcome)]
    lost = [
        f"{name}: not reached: {error.summary}"
        for name, error in seen.items()
        if isinstance(error, FleetError)
    ]
    parts = [table(_HOST_COLUMNS, hosts)] if hosts else []
    parts += [table(_GPU_COLUMNS, gpus)] if gpus else []
    parts += ["\n".join(lost)] if lost else []
    return "\n\n".join(parts)


def check(rows: Sequence[Mapping[str, object]], findings: Mapping[HostName, Sequence[Finding]]) -> str:
    """One line a host, and under it each finding with its fix."""
    lines: list[str] = []
    width = max((len(str(row["host"])) for row in rows), default=0)
    for row in rows:
        name, status = str(row["host"]), str(row["status"])
        found = findings.get(HostName(name), ())
        told = str(row["reason"]) if status == "unreachable" else _count(found)
        lines.append(f"{name.ljust(width)}  {status.ljust(11)}  {told}".rstrip())
        if status == "unreachable" and row["hint"]:
            lines.append(f"{' ' * width}  fix: {row['hint']}")
        for one in found:
            lines.append(f"{' ' * width}  {one.severity.value}: {one.message} [{one.code}]")
            lines.append(f"{' ' * width}  fix: {one.fix}")
    return "\n".join(lines)


def _count(findings: Sequence[Finding]) -> str:
    return "" if not findings else f"{len(findings)} finding" + ("s" if len(findings) > 1 else "")


def _host(outcome: HostFacts) -> tuple[str, ...]:
    runtime = outcome.runtime
    kind = f"{runtime.value.kind} {runtime.value.version}" if isinstance(runtime, Known) else "?"
    containers = outcome.containers
    return (
        outcome.host,
        kind,
        str(len(containers.value)) if isinstance(containers, Known) else "?",
        _text(outcome.driver),
        _text(outcome.toolkit) or "none",
        _text(outcome.kernel),
        _disk(outcome),
        _text(outcome.lease) or "free",
    )


def _disk(outcome: HostFacts) -> str:
    """Free space where images go."""
    if not isinstance(outcome.disks, Known):
        return "?"
    root = outcome.runtime.value.root if isinstance(outcome.runtime, Known) else None
    by_path = {disk.path: disk for disk in outcome.disks.value}
    disk = by_path.get(root.value) if isinstance(root, Known) else by_path.get("/")
    return f"{disk.free_mib / 1024:.0f} GiB" if disk else "?"


def _gpus(outcome: HostFacts) -> Iterator[tuple[str, ...]]:
    if not isinstance(outcome.gpus, Known):
        yield (outcome.host, "?", f"not read: {outcome.gpus.reason}", *[""] * (len(_GPU_COLUMNS) - 3))
        return
    for gpu in outcome.gpus.value:
        yield (
            outcome.host,
            str(gpu.index),
            gpu.name,
            _text(gpu.memory_total_mib, " MiB"),
            _text(gpu.memory_used_mib, " MiB"),
            _text(gpu.utilization_pct, " %"),
            _text(gpu.temperature_c, " C"),
            _mig(gpu),
            gpu.uuid,
        )
        if isinstance(gpu.mig.instances, Known):
            for one in gpu.mig.instances.value:
                yield _slice(outcome.host, gpu.index, one)


def _slice(host: HostName, index: int, one: MigInstance) -> tuple[str, ...]:
    place = f"{_text(one.start)}:{_text(one.size)}"
    name = f"  {one.profile} gi {_text(one.gi)} ci {_text(one.ci)} at {place}"
    return (host, str(index), name, _text(one.memory_mib, " MiB"), "", "", "", "", one.uuid)


def _mig(gpu: GpuFact) -> str:
    if gpu.mig.capable == Known(False):
        return "none"
    match gpu.mig.current, gpu.mig.pending:
        case Known(value=now), Known(value=then) if now != then:
            return f"{_switch(now)}, then {_switch(then)}"
        case Known(value=now), _:
            return _switch(now)
        case _:
            return "?"


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _text(fact: Fact[T], unit: str = "") -> str:
    return f"{fact.value}{unit}" if isinstance(fact, Known) else "?"
