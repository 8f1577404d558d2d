"""Whether hosts must have the image from other hosts, because no registry gives it to them; and room for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.pin import Pin
from gpufleet.deploy.staging import archive, images, looks, stores
from gpufleet.deploy.staging.carry import Carry
from gpufleet.deploy.staging.give import Giving, Spot
from gpufleet.deploy.staging.images import ImageOnHost
from gpufleet.deploy.staging.model import HostStore
from gpufleet.deploy.tools import Tools
from gpufleet.errors import ErrorRow, FleetError, PreflightFailed
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit


def carry_of(
    tools: Tools,
    pin: Pin,
    seen: Mapping[HostName, ImageOnHost],
    *,
    dialects: Mapping[HostName, Dialect],
    spots: Mapping[HostName, Spot],
    word: Secret[str],
    stall: float,
) -> Carry | None:
    """The image from hosts that have it to those that lack it, when their registry does not give it; None otherwise.

    Nobody is asked when every host has it, none has it, or they hold different images.

    Raises:
        PreflightFailed: a host has no room for the archive, or lacks what copying needs; nothing was changed.
    """
    image = images.one_image(seen)
    lacking = tuple(host for host, one in seen.items() if not one.id)
    if image is None or not lacking:
        return None
    reasons = _reasons(tools, pin, lacking, dialects, local=not image.digests)
    if not reasons:
        return None
    having = tuple(host for host, one in seen.items() if one.id and host in spots)
    if not having:
        tools.warn(f"no host can give {pin.written} to others: none that has it has a free port of its range")
        return None
    _check_ids(dialects, having, lacking)
    name = image.id.removeprefix("sha256:")[:16]
    seen_stores = _stores(tools, f"{archive.STORE}/{name}", (*having, *lacking))
    _check_room(image.size, seen_stores, lacking)
    with_room = tuple(
        host for host in having if host in seen_stores and _roomy(seen_stores[host], image.size)
    )
    if not with_room:
        raise PreflightFailed(
            f"no host that has {pin.written} has room for an archive of it ({image.size >> 20} MiB)",
            where=", ".join(having),
            hints=("free some under ~/.gpufleet on one of them",),
        )
    return Carry(
        reference=pin.written,
        image=image.id,
        size=image.size,
        having=with_room,
        lacking=reasons,
        paths={host: store.path for host, store in seen_stores.items()},
        dialects=dialects,
        giving=Giving(image=image.id, word=word, spots=spots),
        stall=stall,
    )


def _reasons(
    tools: Tools, pin: Pin, lacking: Sequence[HostName], dialects: Mapping[HostName, Dialect], *, local: bool
) -> dict[HostName, str]:
    """Why each host takes the image from another; empty when the registry gives it, or nobody knows."""
    if local:
        return dict.fromkeys(lacking, "it was built or loaded on its host, and no registry knows it")
    answers = fanout(
        lacking,
        lambda host: images.refusal_of(asked(tools, host, images.ask_daemon(dialects[host], pin.pulled))),
        forks=tools.change.forks,
    )
    refused = {host: answer for host, answer in answers.items() if isinstance(answer, str) and answer}
    if not refused:
        return {}
    first = next(iter(refused))
    return {
        host: refused.get(host, f"one image id on every host, and on {first} {refused[first]}")
        for host in lacking
    }


def _check_ids(
    dialects: Mapping[HostName, Dialect], having: Sequence[HostName], lacking: Sequence[HostName]
) -> None:
    """One image has two ids in two kinds of store, and neither tells the other: what came could not be recognised."""
    known = {host: dialects[host].image_ids for host in (*having, *lacking) if dialects[host].image_ids}
    here = next((known[host] for host in having if host in known), "")
    other = [host for host in lacking if here and known.get(host, here) != here]
    if not other:
        return
    giver = next(host for host in having if host in known)
    raise PreflightFailed(
        f"{len(other)} host(s) keep images in another kind of store than {giver}, where the image has another id;"
        " nothing was changed",
        where=", ".join(other),
        rows=tuple(
            ErrorRow(
                host,
                f"it keeps images in {_KINDS[known[host]]}, and {giver} in {_KINDS[here]}",
                "",
                "image-store",
            )
            for host in other
        ),
        hints=_ONE_ID,
    )


_ONE_ID = (
    "give them a registry that has the image: push it there from the host that has it, and name that in engine.image",
    """or one kind of store for all: `"features": {"containerd-snapshotter": true}`, or false, in daemon.json and a restart\
 of docker (images and containers of the other store are hidden meanwhile)""",
)
_KINDS = {"manifest": "containerd's image store", "config": "Docker's older one, as podman does"}


def _stores(tools: Tools, wanted: str, hosts: Sequence[HostName]) -> dict[HostName, HostStore]:
    found = fanout(
        hosts,
        lambda host: looks.read_survey(asked(tools, host, stores.survey(wanted))),
        forks=tools.change.forks,
    )
    return {host: one for host, one in found.items() if isinstance(one, HostStore)}


def _roomy(store: HostStore, size: int) -> bool:
    return store.writable and (store.free_kib is None or store.free_kib * 1024 >= size)


def _check_room(size: int, seen_stores: Mapping[HostName, HostStore], lacking: Sequence[HostName]) -> None:
    rows = []
    for host in lacking:
        store = seen_stores.get(host)
        if store is None:
            rows.append(ErrorRow(host, "the place for the image's archive was not seen", "", "store-unknown"))
        elif missing := [name for name in store.lacks if name in {"curl", "sha256sum", "stat"}]:
            words = " and no ".join(missing)
            rows.append(ErrorRow(host, f"has no {words}", f"install {' '.join(missing)}", "store-tools"))
        elif not _roomy(store, size):
            free = (
                "it cannot be written"
                if not store.writable
                else f"{(store.free_kib or 0) >> 10} MiB are free"
            )
            rows.append(
                ErrorRow(
                    host,
                    f"the image's archive takes {size >> 20} MiB in {store.path.rpartition('/')[0]}, and {free}",
                    "free some: the archive is removed once it is loaded",
                    "image-room",
                )
            )
    if rows:
        raise PreflightFailed(
            f"{len(rows)} host(s) cannot take the image from another; nothing was changed",
            where=", ".join(row.where for row in rows),
            rows=tuple(rows),
        )


def asked(tools: Tools, host: HostName, command: Command) -> str:
    """The answer, or nothing that can be read: what a host does not tell stays unknown."""
    try:
        with closing(tools.change.transport.open(host)) as session:
            outcome = session.run(command)
    except FleetError:
        return "?"
    return outcome.stdout if isinstance(outcome, Exit) and outcome.ok else "?"
