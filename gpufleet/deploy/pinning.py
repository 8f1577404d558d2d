"""The image of a plan: its tag resolved once, and room for it on every host that lacks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.pin import Pin
from gpufleet.deploy.staging import images
from gpufleet.deploy.staging.images import ImageOnHost
from gpufleet.deploy.tools import Tools
from gpufleet.errors import ErrorRow, FleetError, PreflightFailed
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName
from gpufleet.pools.model import Pool
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit


def pin(
    tools: Tools, pool: Pool, hosts: Sequence[Host], facts: Mapping[HostName, HostFacts], pulled: str = ""
) -> Pin:
    """Resolve the tag of the pool's image, and check that every host that lacks the image has room for it.

    `pulled` is what an earlier plan would have pulled: that stays, whatever the tag means by now.

    Raises:
        PreflightFailed: a host has no room; nothing was changed.
    """
    written = tools.engine.container(pool, key=None, devices=1).image
    dialects = {
        host.name: Dialect.of(runtime.value)
        for host in hosts
        if isinstance(runtime := facts[host.name].runtime, Known)
    }
    seen = fanout(
        tuple(dialects),
        lambda host: images.read_look(_ask(tools, host, images.look(dialects[host], written))),
        forks=tools.change.forks,
    )
    there = {host: one for host, one in seen.items() if isinstance(one, ImageOnHost)}
    _room(there, facts)
    if pulled:
        return Pin(written=written, digest=images.split(pulled)[1] if pulled != written else "")
    if images.split(written)[1]:
        return Pin(written=written)
    registry = ""
    if dialects and not any(one.id for one in there.values()):
        asked = next(iter(dialects))
        registry = images.read_registry(_ask(tools, asked, images.ask_registry(dialects[asked], written)))
    digest = images.digest_of(there, registry)
    if isinstance(digest, Unknown):
        tools.warn(f"{written} is used by its tag, because its digest is not known: {digest.reason}")
        return Pin(written=written)
    return Pin(written=written, digest=digest.value)


def _ask(tools: Tools, host: HostName, command: Command) -> str:
    """The answer, or nothing that can be read: what a host does not tell stays unknown."""
    try:
        with closing(tools.change.transport.open(host)) as session:
            outcome = session.run(command)
    except FleetError:
        return "?"
    return outcome.stdout if isinstance(outcome, Exit) and outcome.ok else "?"


def _room(seen: Mapping[HostName, ImageOnHost], facts: Mapping[HostName, HostFacts]) -> None:
    size = max((one.size for one in seen.values()), default=0) >> 20
    rows = []
    for host in sorted(host for host, one in seen.items() if size and not one.id):
        free = _free_mib(facts[host])
        if free is not None and free < size:
            rows.append(
                ErrorRow(
                    host,
                    f"the image takes {size} MiB, and {free} MiB are free for images",
                    "`docker image prune` frees some",
                    "image-room",
                )
            )
    if rows:
        raise PreflightFailed(
            f"{len(rows)} host(s) have no room for the image; nothing was changed", rows=tuple(rows)
        )


def _free_mib(facts: HostFacts) -> int | None:
    """Free space where the runtime keeps images; None when it is not known."""
    if not (isinstance(facts.runtime, Known) and isinstance(facts.disks, Known)):
        return None
    root = facts.runtime.value.root
    if isinstance(root, Unknown):
        return None
    return next((disk.free_mib for disk in facts.disks.value if disk.path == root.value), None)
