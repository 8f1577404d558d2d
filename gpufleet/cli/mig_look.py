"""What the `mig` commands ask of hosts, and the JSON they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import yaml

from gpufleet import yaml_source
from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, note
from gpufleet.cli.settings import current
from gpufleet.clock import SystemClock
from gpufleet.errors import ExitCode, FleetError, Refused, Unplaceable, UsageError
from gpufleet.hosts.boot_drift import BootDrift, drift
from gpufleet.hosts.gather import gather, gather_offers
from gpufleet.hosts.model import ContainerFact, Fact, GpuFact, HostFacts, Known, Unknown
from gpufleet.hosts.probes.mig_tables import Offer
from gpufleet.mig.bindings import Unbound, unbound
from gpufleet.mig.choose import Asked, choose, parse, unread
from gpufleet.mig.document import layout_of, parted
from gpufleet.mig.model import Placed
from gpufleet.mig.plan import LayoutChange, NoLayout
from gpufleet.mig.seen import SeenGpu, see
from gpufleet.names import HostName

Offers: TypeAlias = Fact[Mapping[int, tuple[Offer, ...]]]
"""What the GPUs of one host can be cut into, by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One GPU, or one host whose GPUs could not be read; `reason` says why there is no `seen`."""

    host: HostName
    gpu: GpuFact | None
    seen: SeenGpu | None
    reason: str = ""
    boot: BootDrift | None = None
    containers: tuple[ContainerFact, ...] = ()
    unbound: tuple[Unbound, ...] = ()
    """Containers of the host without their slice, at its first GPU."""

    @property
    def name(self) -> str:
        """`HOST:INDEX`, or the host alone."""
        return self.host if self.gpu is None else f"{self.host}:{self.gpu.index}"

    @property
    def identity(self) -> dict[str, object]:
        """What every row of JSON says of its GPU."""
        row: dict[str, object] = {"host": self.host, "status": "ok" if self.seen else "unknown"}
        if self.gpu is not None:
            row |= {"index": self.gpu.index, "uuid": self.gpu.uuid, "name": self.gpu.name}
        return row if self.seen else {**row, "reason": self.reason}


def look(words: Sequence[str]) -> list[Look]:
    """Every GPU that is named, as MIG sees it, in the order of hosts and indexes."""
    inventory = wiring.load_inventory(current())
    wanted: dict[HostName, list[Asked]] = {}
    for one in [parse(word) for word in words] or [Asked("all")]:
        for host in wiring.select(inventory, (one.host,)):
            wanted.setdefault(host.name, []).append(one)
    hosts = [inventory.hosts[name] for name in wanted]
    with closing(wiring.transport(inventory, current())) as transport:
        facts = gather(transport, hosts, clock=SystemClock(), forks=current().forks)
        offers = gather_offers(transport, hosts, forks=current().forks)
    return [found for name in wanted for found in _of_host(name, facts[name], offers[name], wanted[name])]


def _of_host(
    name: HostName, facts: HostFacts | FleetError, offers: Offers, asked: Sequence[Asked]
) -> list[Look]:
    if isinstance(facts, FleetError):
        return [Look(host=name, gpu=None, seen=None, reason=facts.summary)]
    if isinstance(facts.gpus, Unknown):
        return [Look(host=name, gpu=None, seen=None, reason=facts.gpus.reason)]
    chosen = {gpu.uuid: gpu for one in asked for gpu in choose(one, name, facts, facts.gpus.value)}
    found: list[Look] = []
    for gpu in chosen.values():
        offered = Known(offers.value.get(gpu.index, ())) if isinstance(offers, Known) else offers
        seen = see(gpu, offered, facts.containers)
        found.append(
            Look(
                host=name,
                gpu=gpu,
                seen=seen.value,
                boot=drift(gpu, facts.boot_layout),
                containers=tuple(facts.containers.value) if isinstance(facts.containers, Known) else (),
            )
            if isinstance(seen, Known)
            else Look(host=name, gpu=gpu, seen=None, reason=seen.reason)
        )
    if found:
        found[0] = replace(found[0], unbound=tuple(unbound(facts.gpus.value, facts.containers)))
    return found


def one(word: str) -> Look:
    """The one GPU that `word` names.

    Raises:
        UsageError: it names none, or several.
    """
    found = look([word])
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"{word!r} names {len(found)} GPUs; a layout is planned for one",
        hints=(f"name one of them: {', '.join(each.name for each in found[:8])}",)
        if found
        else ("name a host that has GPUs",),
    )


def known(found: Look) -> SeenGpu:
    """What was seen of a GPU for which a plan is to be made.

    Raises:
        FactUnknown: something could not be read, and a plan on half of the facts is none.
    """
    if found.seen is not None:
        return found.seen
    raise unread(f"no plan without knowing what is there: {found.reason}", found.name, found.host)


def no_layout(why: NoLayout, where: str, identity: Mapping[str, object]) -> Answer:
    """The refusal, exit 4: why the wish cannot be had, and what would fit."""
    near = ",".join(str(each) for each in why.nearest)
    hint = f"this much fits: --layout {near}" if near else "the profiles of this GPU: `gpufleet mig profiles`"
    note(f"error: {where}: {why.reason}")
    note(f"hint: {hint}")
    error = {"code": Unplaceable.code, "message": why.reason, "where": where, "hints": [hint]}
    nothing: dict[str, object] = {"keep": [], "destroy": [], "create": [], "containers": [], "commands": []}
    return Answer(
        command="mig plan",
        outcome="refused",
        exit=ExitCode.REFUSED,
        fields={**identity, "fits": False, "reason": why.reason, **nothing, "error": error},
    )


def from_file(path: Path, layout: str, *, index: int, name: str) -> str:
    """The layout that a file has under this name, as it is written at the command line.

    Raises:
        Refused: it is for another board.
    """
    chosen = layout_of(yaml_source.read(path), layout, index)
    if chosen.board.lower() not in name.lower():
        raise Refused(
            f"layout {layout} is for {chosen.board}, this GPU is {name}",
            where=str(path),
            hints=("name a layout for this board, or write the slices with --layout",),
        )
    return chosen.text


def as_parted(looks: Sequence[Look]) -> Answer:
    """The layouts of one host as a configuration of mig-parted.

    Raises:
        UsageError: GPUs of several hosts: an index means another GPU on each.
        FactUnknown: a GPU that can be cut could not be read.
    """
    hosts = {each.host for each in looks}
    if len(hosts) != 1:
        raise UsageError(
            f"a configuration of mig-parted is for one host, not {len(hosts)}", hints=("name one host",)
        )
    layouts: dict[int, tuple[bool, tuple[str, ...]]] = {}
    for each in looks:
        if each.gpu is not None and each.gpu.mig.capable == Known(False):
            continue
        seen = known(each)
        layouts[seen.gpu.index] = (seen.on, tuple(one.profile for one in seen.placed))
    document = parted(layouts)
    return Answer(
        command="mig show", fields=document, text=yaml.safe_dump(document, sort_keys=False).rstrip()
    )


def parts(change: LayoutChange) -> dict[str, object]:
    """What becomes of each slice, in JSON."""
    return {
        "fits": True,
        "reason": "",
        "keep": [_place(each) for each in change.keep],
        "destroy": [_place(each) for each in change.destroy],
        "create": [_place(each) for each in change.create],
        "moved": [
            {"profile": one.profile, "from": one.start, "to": goal.start} for one, goal in change.moved
        ],
    }


def outcome(change: LayoutChange) -> str:
    """The word of JSON for a plan."""
    return "changes" if change.changes else "no_change"


def layout(seen: SeenGpu) -> dict[str, object]:
    """The slices of one GPU and who uses them, in JSON."""
    return {
        "current": seen.on,
        "pending": seen.pending,
        "slots": seen.geometry.slots,
        "slices": [
            {
                **_place(each.placed),
                "gi": each.gi,
                "ci": list(each.cis),
                "uuids": list(each.uuids),
                "containers": list(each.containers),
                "resting": list(each.resting),
                "processes": list(each.processes),
            }
            for each in seen.slices
        ],
        "containers": list(seen.whole),
        "resting": list(seen.resting),
    }


def boot(found: BootDrift | None) -> dict[str, object]:
    """How the slices compare with what a boot brings back, in JSON."""
    if found is None:
        return {}
    return {
        "boot": {
            "standing": found.standing.value,
            "missing": list(found.missing),
            "extra": list(found.extra),
            "renamed": list(found.renamed),
        }
    }


def without_slice(looks: Sequence[Look]) -> list[Mapping[str, object]]:
    """Containers that do not have the slice they were made for, in JSON."""
    return [
        {
            "host": each.host,
            "container": one.container,
            "state": one.state,
            "device": one.device,
            "reason": one.reason,
        }
        for each in looks
        for one in each.unbound
    ]


def answer(
    command: str,
    looks: Sequence[Look],
    fields: Sequence[Mapping[str, object]],
    text: str,
    **more: object,
) -> Answer:
    """The answer of a command that only looks: exit 7 when a host was not reached or could not be read.

    A GPU that cannot be cut at all is no failure; it is said and passed over.
    """
    blind = [each for each in looks if each.gpu is None]
    for each in looks:
        if each.seen is None:
            note(f"{each.name}: {each.reason}")
    if not blind:
        return Answer(command=command, fields={"gpus": list(fields), **more}, text=text)
    where = ", ".join(each.host for each in blind)
    error = {
        "code": "unreachable",
        "message": f"GPUs of {len(blind)} host(s) could not be read",
        "where": where,
    }
    hints = [f"look with `gpufleet hosts check {blind[0].host}`"]
    return Answer(
        command=command,
        outcome="failed",
        exit=ExitCode.UNREACHABLE,
        fields={"gpus": list(fields), **more, "error": {**error, "hints": hints}},
        text=text,
    )


def _place(each: Placed) -> dict[str, object]:
    return {"profile": each.profile, "start": each.start, "size": each.size}
