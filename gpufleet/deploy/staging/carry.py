"""An image on its way from hosts that have it to hosts that no registry gives it.

The same tree as for weights: each host that is done gives to at most four others, by the same short-lived container.
What was loaded knows no registry's digest, so all replicas of such a plan name the image by its id, which is the
same wherever its content is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.change.model import Check, Irreversible, Step
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.staging import archive, tree
from gpufleet.deploy.staging.commands import STALL
from gpufleet.deploy.staging.give import Giving
from gpufleet.names import HostName, RunId, StepId

PHASE = "pull"
"""All of it is what a plan does to have its image: beside it weights may come, and nothing is stopped before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """One image and the hosts it goes from and to.

    Attributes:
        reference: what is saved, so that the tag comes along.
        image: its id.
        size: bytes, unpacked, which is about what its archive takes.
        having: hosts that have it and can give.
        lacking: hosts that take it, with the reason why no registry gives it there.
        paths: directory of the archive, by host.
        dialects: how each runtime is spoken to.
        stall: seconds that a copy may come without a byte.
    """

    reference: str
    image: str
    size: int
    having: tuple[HostName, ...]
    lacking: Mapping[HostName, str]
    paths: Mapping[HostName, str]
    dialects: Mapping[HostName, Dialect]
    giving: Giving
    stall: float = float(STALL)

    def sources(self, hosts: Sequence[HostName]) -> Mapping[HostName, HostName]:
        """From whom each of these hosts takes the image."""
        lacking = [host for host in hosts if host in self.lacking]
        able = [host for host in lacking if host in self.giving.spots]
        ordered = (*able, *(host for host in lacking if host not in self.giving.spots))
        having = self.having[: -(-len(lacking) // tree.FAN_OUT)]
        found = tree.parents(having, ordered, givers=len(able))
        return {host: parent or having[0] for host, parent in found.items()}

    def steps(self, hosts: Sequence[HostName], run: RunId) -> tuple[Step, ...]:
        """What brings the image to these hosts; the last step of each is its `pull`."""
        parents = self.sources(hosts)
        made: list[Step] = []
        children: dict[HostName, list[StepId]] = {}
        for host, parent in parents.items():
            made += [self._take(host, parent), self._load(host, run)]
            children.setdefault(parent, []).append(made[-2].id)
        for host, fed in children.items():
            if host not in parents:
                made.append(self._save(host))
            archived = StepId(f"take-image-{host}" if host in parents else f"save-image-{host}")
            # Who takes the image may run its giver only once it is loaded.
            ready = frozenset({archived, *({StepId(f"pull-{host}")} if host in parents else ())})
            made.append(self.giving.begin(host, self.paths[host], run, ready, what="image"))
            made.append(self.giving.end(host, run, frozenset(fed), what="image"))
        made += [self._drop(host, parents, children) for host in dict.fromkeys((*parents, *children))]
        return tuple(made)

    def _archive(self, step: str, host: HostName, title: str) -> Step:
        dialect, path = self.dialects[host], self.paths[host]
        look = archive.there(dialect, path)
        return Step(
            id=StepId(f"{step}-image-{host}"),
            host=host,
            title=title,
            do=(archive.save(dialect, path, self.reference, self.image, self.size),),
            undo=(archive.drop(dialect, path),),
            verify=Check(look=look, expect="weights-whole", data=(path,)),
            absent=Check(look=look, expect="archive-gone"),
            phase=PHASE,
        )

    def _save(self, host: HostName) -> Step:
        return self._archive("save", host, f"write {self.reference} ({self.shown}) into an archive")

    def _take(self, host: HostName, parent: HostName) -> Step:
        dialect = self.dialects[host]
        near = self.giving.base(parent)
        return replace(
            self._archive("take", host, f"take {self.reference} ({self.shown}) from {parent}"),
            do=(archive.take(dialect, self.paths[host], near, parent, size=self.size, stall=self.stall),),
            after=frozenset({StepId(f"give-image-{parent}")}),
        )

    def _load(self, host: HostName, run: RunId) -> Step:
        dialect, path, owner = self.dialects[host], self.paths[host], f"{run}/{host}"
        look = archive.loaded(dialect, path, self.image, owner)
        return Step(
            id=StepId(f"pull-{host}"),
            host=host,
            title=f"load {self.reference}, image {self.image}",
            do=(archive.load(dialect, path, self.image, owner, self.size),),
            undo=(archive.unload(dialect, path, self.image, owner),),
            verify=Check(look=look, expect="image-loaded", data=(self.image,)),
            absent=Check(look=look, expect="image-unloaded"),
            after=frozenset({StepId(f"take-image-{host}")}),
            phase=PHASE,
        )

    def _drop(
        self, host: HostName, parents: Mapping[HostName, HostName], givers: Mapping[HostName, object]
    ) -> Step:
        after = {StepId(f"pull-{host}")} if host in parents else set()
        after |= {StepId(f"given-image-{host}")} if host in givers else set()
        dialect, path = self.dialects[host], self.paths[host]
        return Step(
            id=StepId(f"drop-image-{host}"),
            host=host,
            title="remove the archive of the image",
            do=(archive.drop(dialect, path),),
            undo=Irreversible("the archive was only on its way"),
            verify=Check(look=archive.there(dialect, path), expect="archive-gone"),
            after=frozenset(after),
            phase=PHASE,
        )

    @property
    def shown(self) -> str:
        """Its size for people."""
        return f"{self.size / (1 << 30):.1f} GiB" if self.size >= 1 << 30 else f"{self.size >> 20} MiB"

    def lines(self, hosts: Sequence[HostName]) -> tuple[str, ...]:
        """One line for each host that takes it: how much, from whom, and why not from a registry."""
        return tuple(
            f"{host} takes the image ({self.shown}) from {parent}: {self.lacking[host]}"
            for host, parent in self.sources(hosts).items()
        )
