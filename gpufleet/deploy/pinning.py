"""The image of a plan: its tag resolved once, and room for it on every host that lacks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpufleet.deploy.carrying import asked, carry_of
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.pin import Pin
from gpufleet.deploy.staging import images
from gpufleet.deploy.staging.carry import Carry
from gpufleet.deploy.staging.images import ImageOnHost
from gpufleet.deploy.staging.spots import spots_of
from gpufleet.deploy.tools import Tools
from gpufleet.errors import ErrorRow, PreflightFailed
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret
from gpufleet.remote.fanout import fanout


def pin(
    tools: Tools,
    pool: Pool,
    hosts: Sequence[Host],
    facts: Mapping[HostName, HostFacts],
    *,
    word: Secret[str],
    pulled: str = "",
) -> tuple[Pin, Carry | None]:
    """Resolve the tag of the pool's image, and check that every host that lacks the image has room for it.

    `pulled` is what an earlier plan would have pulled: that stays, whatever the tag means by now. `word` opens a
    host that gives the image to others, where no registry does.

    Raises:
        PreflightFailed: a host has no room; nothing was changed.
    """
    written = tools.engine.container(pool, key=None, devices=1).image
    dialects = {
        host.name: Dialect.of(runtime.value)
        for host in hosts
        if isinstance(runtime := facts[host.name].runtime, Known)
    }
    there = _looked(tools, pulled or written, dialects)
    _room(there, facts)
    found = _pinned(tools, written, pulled, there, dialects)
    carry = carry_of(
        tools,
        found,
        there,
        dialects=dialects,
        spots=spots_of(hosts, facts),
        word=word,
        stall=pool.gate.pull_stall,
    )
    image = images.one_image(there)
    everywhere = image is not None and all(one.id for one in there.values())
    named = images.split(found.pulled)[1]
    if image is not None and (
        carry is not None
        or found.image
        or (everywhere and named and any(named not in one.digests for one in there.values()))
    ):
        tools.warn(
            f"{written} is pinned by its image id {image.id}: a host has it without a registry's digest"
        )
        found = replace(found, image=image.id)
    return found, carry


def _looked(tools: Tools, wanted: str, dialects: Mapping[HostName, Dialect]) -> dict[HostName, ImageOnHost]:
    """What hosts have under a name; one that lacks it may have the same image without that name."""

    def look(names: Sequence[HostName], reference: str) -> dict[HostName, ImageOnHost]:
        answers = fanout(
            names,
            lambda host: images.read_look(asked(tools, host, images.look(dialects[host], reference))),
            forks=tools.change.forks,
        )
        return {host: one for host, one in answers.items() if isinstance(one, ImageOnHost)}

    there = look(tuple(dialects), wanted)
    lacking = tuple(host for host, one in there.items() if not one.id)
    image = images.one_image(there)
    return there | look(lacking, image.id) if image is not None and lacking else there


def _pinned(
    tools: Tools,
    written: str,
    pulled: str,
    there: Mapping[HostName, ImageOnHost],
    dialects: Mapping[HostName, Dialect],
) -> Pin:
    if images.is_id(pulled):
        return Pin(written=written, image=pulled)
    if pulled:
        return Pin(written=written, digest=images.split(pulled)[1] if pulled != written else "")
    if images.split(written)[1]:
        return Pin(written=written)
    registry = ""
    if dialects and not any(one.id for one in there.values()):
        first = next(iter(dialects))
        registry = images.read_registry(asked(tools, first, images.ask_registry(dialects[first], written)))
    digest = images.digest_of(there, registry)
    if isinstance(digest, Unknown):
        tools.warn(f"{written} is used by its tag, because its digest is not known: {digest.reason}")
        return Pin(written=written)
    return Pin(written=written, digest=digest.value)


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
