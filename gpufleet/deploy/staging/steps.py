"""The steps that bring weights to hosts, each with its undo beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.change.model import Check, Step
from gpufleet.deploy.staging import commands, share, stores, tree
from gpufleet.deploy.staging.give import Giving
from gpufleet.deploy.staging.model import Fetch, HostStore, Listing
from gpufleet.errors import PreflightFailed
from gpufleet.names import HostName, RunId, StepId

BESIDE = frozenset({"pull", "stage"})
"""Phases that need no weights: they run while weights are staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """One revision on its way to hosts.

    Attributes:
        path: its directory, the same on every host.
        stores: what each host said.
        shared: the store is one directory that all hosts see.
        verify: what is there already is read again and repaired.
        giving: how hosts give to each other; None lets each read the source.
        stall: seconds that a copy may come without a byte.
        seeing: hosts that reach the source themselves; None for all.
        in_place: nothing is copied; the source is a directory of the hosts, and must stay as it was seen.
    """

    listing: Listing
    fetches: tuple[Fetch, ...]
    path: str
    stores: Mapping[HostName, HostStore] = field(default_factory=dict)
    shared: bool = False
    verify: bool = False
    giving: Giving | None = None
    stall: float = float(commands.STALL)
    seeing: frozenset[HostName] | None = None
    in_place: bool = False

    def lacking(self, hosts: Sequence[HostName]) -> tuple[HostName, ...]:
        """Hosts that have something to do: those without the weights, all of them when they are verified."""
        return tuple(host for host in hosts if self.verify or self.stores[host].state != "complete")

    def given_by(self, image: str) -> Staging:
        """The same with givers of this image: the one that is pulled anyway."""
        return self if self.giving is None else replace(self, giving=replace(self.giving, image=image))

    def steps(self, hosts: Sequence[HostName], run: RunId) -> tuple[Step, ...]:
        """What brings the revision to these hosts; nothing for those that have it."""
        if self.in_place:
            return tuple(self._watched(host) for host in hosts)
        lacking = self.lacking(hosts)
        if self.seeing is not None:
            lacking = tuple(sorted(lacking, key=lambda host: host not in (self.seeing or ())))
        if self.shared and len(lacking) > 1:
            first = self._stage(lacking[0], run)
            return (first, *(self._seen(host, first) for host in lacking[1:]))
        return self._tree(lacking, run)

    def _tree(self, lacking: Sequence[HostName], run: RunId) -> tuple[Step, ...]:
        """Each host copies from one that is done before it; the source is read by the roots alone."""
        giving = self.giving
        if giving is None or self.verify:
            self._refuse_blind(lacking)
            return tuple(self._stage(host, run) for host in lacking)
        having = [
            host for host, one in self.stores.items() if one.state == "complete" and host in giving.spots
        ]
        able = [host for host in lacking if host in giving.spots]
        ordered = (*able, *(host for host in lacking if host not in giving.spots))
        parents = tree.parents(having[: -(-len(lacking) // tree.FAN_OUT)], ordered, givers=len(able))
        self._refuse_blind([host for host, parent in parents.items() if parent is None])
        steps: list[Step] = []
        children: dict[HostName, list[StepId]] = {}
        for host, parent in parents.items():
            step = self._stage(host, run, parent)
            steps.append(step)
            if parent is not None:
                children.setdefault(parent, []).append(step.id)
        for host, fed in children.items():
            here = {StepId(f"stage-{host}")} if host in parents else set()
            steps.append(giving.begin(host, self.path, run, frozenset(here)))
            steps.append(giving.end(host, run, frozenset(fed)))
        return tuple(steps)

    def _refuse_blind(self, roots: Sequence[HostName]) -> None:
        """Raises PreflightFailed for a host that would have to read a source which it does not see."""
        blind = [host for host in roots if self.seeing is not None and host not in self.seeing]
        if blind:
            raise PreflightFailed(
                f"{', '.join(blind)} does not see {self.listing.source.place}, and no host may give it the weights",
                where=", ".join(blind),
                hints=("mount it there, or let hosts give to each other: `--image IMAGE`, and free ports",),
            )

    def _watched(self, host: HostName) -> Step:
        """A directory that is used where it is: it must be what the plan was made with."""
        return Step(
            id=StepId(f"stage-{host}"),
            host=host,
            title=f"see that {self.path} is as it was listed",
            do=(),
            undo=(),
            verify=Check(
                look=share.look(self.path), expect="weights-unchanged", data=share.data_of(self.listing)
            ),
            phase="stage",
        )

    def _stage(self, host: HostName, run: RunId, parent: HostName | None = None) -> Step:
        owner = f"{run}/{host}"
        near = self.giving.base(parent) if self.giving is not None and parent is not None else ""
        how = f"from {parent}" if parent is not None else self.listing.source.shown
        look = stores.look(self.path, owner)
        return Step(
            id=StepId(f"stage-{host}"),
            host=host,
            title=f"stage {how} into {self.path}",
            do=(
                commands.fetch(
                    self.path,
                    owner,
                    self.fetches,
                    near=near,
                    mode="verify" if self.verify else "stage",
                    stall=max(1, round(self.stall)),
                ),
            ),
            undo=(commands.tidy(self.path, owner),),
            verify=Check(look=look, expect="weights-whole", data=(self.path,)),
            absent=Check(look=look, expect="no-partial-weights"),
            after=frozenset({StepId(f"give-{parent}")} if parent is not None else ()),
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
                look=stores.look(self.path, ""),
                expect="weights-seen",
                data=(self.path,),
                within=180.0,
                every=5.0,
            ),
            after=frozenset({writer.id}),
            phase="stage",
        )


def with_weights(
    staging: Staging | None, image: str, hosts: Sequence[HostName], run: RunId, steps: tuple[Step, ...]
) -> tuple[Step, ...]:
    """A plan in which nothing is stopped or started before every host has its weights; givers run `image`."""
    if staging is None:
        return steps
    first = staging.given_by(image).steps(hosts, run)
    there = frozenset(step.id for step in first)
    return (
        *(_giver_with_image(step, steps) for step in first),
        *(step if step.phase in BESIDE else replace(step, after=step.after | there) for step in steps),
    )


def _giver_with_image(step: Step, steps: Sequence[Step]) -> Step:
    """A giver runs the image, so it begins once its host has that; an image's own giver held the port until then."""
    if step.phase != "give":
        return step
    image = frozenset(one.id for one in steps if one.host == step.host and one.phase == "pull")
    return replace(step, after=step.after | image)
