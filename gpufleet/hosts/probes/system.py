"""The machine under the GPUs: who we are there, its kernel, disks, listening ports, and gpufleet's own traces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.hosts.model import DiskFact, Fact, Known, Unknown
from gpufleet.hosts.probes.script import Section

_DISK = re.compile(r"\s(\d{1,18})\s+(-?\d{1,18})\s+(-?\d{1,18})\s+(?:\d{1,3}%|-)\s+(/.*)$", re.ASCII)
_USER = re.compile(r"^uid=(\d{1,10})(?:\(([^)]+)\))?", re.ASCII)
_SECONDS = re.compile(r"^-?\d{1,12}$", re.ASCII)
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""


LEASE_EXPIRES = 120
"""Seconds without a heartbeat after which a lease may be taken over; the `change` room keeps the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A change at work on the host; `age` is seconds since its last heartbeat, None when that is not known."""

    who: str
    run: str
    operation: str
    age: int | None

    @property
    def stale(self) -> bool:
        return self.age is not None and self.age > LEASE_EXPIRES

    def line(self) -> str:
        """For people: who, what, which run."""
        return " ".join(word for word in (self.who, self.operation, self.run) if word)


def pairs(text: str) -> Mapping[str, str]:
    """Lines of `name=value`; the first one of a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and name not in found:
            found[name] = value
    return found


def parse_value(section: Section | None, name: str) -> Fact[str]:
    """One value of the section `system`: `user`, `hostname`, `kernel`, `architecture`, or one it names itself."""
    if section is None:
        return Unknown("the host gave no answer to it")
    told = pairs(section.text)
    uname = told.get("uname", "").split()
    derived = {"user": _user(told.get("id", ""))}
    if len(uname) == 3:
        derived |= dict(zip(("hostname", "kernel", "architecture"), uname, strict=True))
    value = derived.get(name, told.get(name, ""))
    return Known(value) if value else Unknown(f"the host did not tell its {name.replace('_', ' ')}")


def _user(text: str) -> str:
    """The name in `uid=1000(ops) gid=...`, the number where there is no name."""
    found = _USER.match(text)
    return (found[2] or found[1]) if found else ""


def parse_sudo(section: Section | None) -> Fact[bool]:
    """Whether `sudo -n true` worked; root need not ask. A password that is wanted is a clear no; silence is not."""
    if section is None or section.status is None:
        return Unknown(section.text.strip() if section and section.text.strip() else "sudo was not asked")
    if section.status in {124, 137}:
        return Unknown(f"sudo: {section.reason()}")
    return Known(section.ok)


def parse_disks(section: Section | None) -> Fact[tuple[DiskFact, ...]]:
    """Lines of `path=...`, then one row of `df -P -k` for each in this order.

    When rows are missing, which ones is not told, and only the root's own row is believed.
    """
    if section is None:
        return Unknown("df gave no answer")
    lines = section.text.splitlines()
    paths = [line.removeprefix("path=") for line in lines if line.startswith("path=")]
    rows = [row for line in lines if not line.startswith("path=") and (row := _DISK.search(line))]
    if len(rows) != len(paths):
        paths, rows = ["/"], [row for row in rows if row[4].strip() == "/"][:1]
    if not rows:
        said = section.errors.strip().splitlines()
        return Unknown(f"df: {said[0]}" if said else "df gave no row of the root file system")
    found = {
        path: DiskFact(path=path, free_mib=max(0, int(row[3])) // 1024, total_mib=int(row[1]) // 1024)
        for path, row in zip(paths, rows, strict=True)
    }
    return Known(tuple(found.values()))


def parse_ports(listening: Section | None, sockets: Section | None) -> Fact[frozenset[int]]:
    """`ss -Htln`, else /proc/net/tcp and tcp6."""
    if listening is not None and listening.ok:
        return _ports_of_ss(listening.text)
    if sockets is not None and sockets.text.strip():
        return _ports_of_proc(sockets.text)
    return Unknown(f"ss: {listening.reason()}" if listening else "ss gave no answer")


def _ports_of_ss(text: str) -> Fact[frozenset[int]]:
    found: set[int] = set()
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] != "LISTEN":
            continue
        port = words[3].rpartition(":")[2] if len(words) > 3 else ""
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            return Unknown("ss printed a line that is no socket")
        found.add(int(port))
    return Known(frozenset(found))


def _ports_of_proc(text: str) -> Fact[frozenset[int]]:
    found: set[int] = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or not words[0].endswith(":") or words[3] != _LISTEN:
            continue
        try:
            found.add(int(words[1].rpartition(":")[2], 16))
        except ValueError:
            return Unknown("/proc/net/tcp holds a line that is no socket")
    return Known(frozenset(found))


def parse_lease(section: Section | None) -> Fact[Lease | None]:
    """The lease of a change, or None when none is held. The heartbeat's age is of the host's own clock."""
    if section is None:
        return Unknown("the host did not tell whether a lease is held")
    first, _, content = section.text.partition("\n")
    words = first.split()
    if not words:
        return Known(None)
    if words[0] != "held":
        return Unknown("the lease could not be read")
    age = int(words[1]) if len(words) > 1 and _SECONDS.match(words[1]) else None
    record = _record(content)
    who, run, operation = (str(record.get(key) or "") for key in ("holder", "run", "operation"))
    return Known(Lease(who=who or "a holder that left no record", run=run, operation=operation, age=age))


def _record(text: str) -> Mapping[str, object]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def parse_runs(section: Section | None) -> Fact[tuple[str, ...]]:
    """Runs with a journal and without a mark that they are settled."""
    if section is None:
        return Unknown("the host did not tell its runs")
    return Known(tuple(sorted(line.strip() for line in section.text.splitlines() if line.strip())))
