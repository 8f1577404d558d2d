"""The steps that bring weights to hosts, each with its undo beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.change.model import Check, Step
from gpufleet.deploy.staging import commands
from gpufleet.deploy.staging.model import Fetch, HostStore, Listing
from gpufleet.names import HostName, RunId, StepId

BESIDE = frozenset({"pull", "stage"})
"""Phases that need no weights: they run while weights are staged."""


def staged_first(staging: Sequence[Step], steps: Sequence[Step]) -> tuple[Step, ...]:
    """A plan in which nothing is stopped or started before every host has its weights."""
    there = frozenset(step.id for step in staging)
    return (
        *staging,
        *(step if step.phase in BESIDE else replace(step, after=step.after | there) for step in steps),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """One revision on its way to hosts.

    Attributes:
        path: its directory, the same on every host.
        stores: what each host said.
        shared: the store is one directory that all hosts see.
        verify: what is there already is read again and repaired.
    """

    listing: Listing
    fetches: tuple[Fetch, ...]
    path: str
    stores: Mapping[HostName, HostStore] = field(default_factory=dict)
    shared: bool = False
    verify: bool = False

    def lacking(self, hosts: Sequence[HostName]) -> tuple[HostName, ...]:
        """Hosts that have something to do: those without the weights, all of them when they are verified."""
        return tuple(host for host in hosts if self.verify or self.stores[host].state != "complete")

    def steps(self, hosts: Sequence[HostName], run: RunId) -> tuple[Step, ...]:
        """What brings the revision to these hosts; nothing for those that have it."""
        lacking = self.lacking(hosts)
        if not self.shared or len(lacking) < 2:
            return tuple(self._stage(host, run) for host in lacking)
        first = self._stage(lacking[0], run)
        return (first, *(self._seen(host, first) for host in lacking[1:]))

    def _stage(self, host: HostName, run: RunId) -> Step:
        owner = f"{run}/{host}"
        look = commands.look(self.path, owner)
        return Step(
            id=StepId(f"stage-{host}"),
            host=host,
            title=f"stage {self.listing.source.shown} into {self.path}",
            do=(commands.fetch(self.path, owner, self.fetches, mode="verify" if self.verify else "stage"),),
            undo=(commands.tidy(self.path, owner),),
            verify=Check(look=look, expect="weights-whole", data=(self.path,)),
            absent=Check(look=look, expect="no-partial-weights"),
            phase="stage",
        )

    def _seen(self, host: HostName, writer: Step) -> Step:
        """A host of a shared store writes nothing; it must only see what the writer wrote."""
        return Step(
            id=StepId(f"stage-{host}"),
            host=host,
            title=f"see {self.path} in the shared store",
            do=(),
            undo=(),
            verify=Check(
                look=commands.look(self.path, ""),
                expect="weights-seen",
                data=(self.path,),
                within=180.0,
                every=5.0,
            ),
            after=frozenset({writer.id}),
            phase="stage",
        )
