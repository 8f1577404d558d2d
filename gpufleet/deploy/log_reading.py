"""Logs of a pool's members, read through their runtimes and told in the order of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.change.reach import Reach
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Tools
from gpufleet.hosts.model import Unknown
from gpufleet.names import HostName, PoolName
from gpufleet.pools.model import Endpoint
from gpufleet.redact import scrub
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit

READ = """
runtime=$1 pool=$2 replica=$3 id=$4 tail=$5 since=$6
if [ -z "$id" ]; then
  id=$("$runtime" ps -aq --no-trunc --filter "label=gpufleet.pool=$pool" --filter "label=gpufleet.replica=$replica") || exit 1
  id=$(printf '%s\\n' "$id" | head -n 1)
fi
if [ -z "$id" ]; then
  echo 'its container is gone' >&2
  exit 1
fi
if [ -n "$since" ]; then
  "$runtime" logs -t --since "$since" "$id" 2>&1
else
  "$runtime" logs -t --tail "$tail" "$id" 2>&1
fi
"""


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """One line. `at`: the host's clock as the runtime printed it; `pool` and `replica` say whose it is."""

    at: str
    pool: str
    replica: str
    text: str


@dataclass(slots=True)
class LogReader:
    """Reads what members said, and later what they said since. Not for several threads.

    Attributes:
        members: pool and endpoint of each.
        trouble: why a member could not be read the last time it was tried, by replica.
    """

    tools: Tools
    members: Sequence[tuple[PoolName, Endpoint]]
    dialects: Mapping[HostName, Dialect]
    reach: Reach
    last: dict[str, str]
    trouble: dict[str, str]

    @classmethod
    def of(cls, tools: Tools, members: Sequence[tuple[PoolName, Endpoint]]) -> LogReader:
        """Look at the members' hosts. Raises HostUnreachable."""
        names = {endpoint.host for _, endpoint in members}
        hosts = tuple(host for name, host in tools.inventory.hosts.items() if name in names)
        facts = survey(tools.change.transport, hosts, clock=tools.change.clock, forks=tools.change.forks)
        trouble: dict[str, str] = {}
        dialects: dict[HostName, Dialect] = {}
        for _, endpoint in members:
            found = facts.get(endpoint.host)
            if found is None:
                trouble[endpoint.replica] = "its host is not in the inventory"
            elif isinstance(found.runtime, Unknown):
                trouble[endpoint.replica] = found.runtime.reason
            else:
                dialects[endpoint.host] = Dialect.of(found.runtime.value)
        reach = Reach(tools.change.transport, tools.change.clock)
        return cls(tools, members, dialects, reach, {}, trouble)

    def read(self, tail: int) -> tuple[LogLine, ...]:
        """The last `tail` lines of each member the first time, then what is new, in the order of time."""
        asked = [HostName(str(number)) for number in range(len(self.members))]
        answers = fanout(asked, lambda number: self._one(int(number), tail), forks=self.tools.change.forks)
        lines = [line for answer in answers.values() if isinstance(answer, list) for line in answer]
        return tuple(sorted(lines))

    def _one(self, number: int, tail: int) -> list[LogLine]:
        pool, endpoint = self.members[number]
        dialect = self.dialects.get(endpoint.host)
        if dialect is None:
            return []
        since = self.last.get(f"{pool} {endpoint.replica}", "")
        words = (pool, endpoint.replica, endpoint.container, str(tail), since)
        answer = self.reach.insist(endpoint.host, dialect.script(READ, *words, mutates=False))
        if not isinstance(answer, Exit) or not answer.ok:
            self.trouble[endpoint.replica] = (
                answer.stderr.strip() or f"exit status {answer.code}"
                if isinstance(answer, Exit)
                else answer.reason
            )
            return []
        self.trouble.pop(endpoint.replica, None)
        lines = [line for line in _lines(pool, endpoint, answer.stdout) if line.at > since]
        if lines:
            self.last[f"{pool} {endpoint.replica}"] = max(line.at for line in lines)
        return lines


def _lines(pool: PoolName, endpoint: Endpoint, text: str) -> Iterator[LogLine]:
    for line in text.splitlines():
        at, _, said = line.partition(" ")
        if at[:4].isdigit():
            yield LogLine(at, pool, endpoint.replica, scrub(said))
