"""What hosts say of their stores, and what that means."""

from __future__ import annotations

from collections.abc import Mapping

from gpufleet.change.model import CannotTell, Fails, Holds, Predicate, Verdict, Waits
from gpufleet.deploy.staging import share
from gpufleet.deploy.staging.model import HostStore
from gpufleet.remote.result import Exit

_STATES = frozenset({"complete", "partial", "absent", "foreign"})


def whole(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether a revision is whole in the store; `data` is its directory."""
    state = answer.stdout.split()
    if not answer.ok or not state:
        return CannotTell(answer.stderr.strip() or "the store could not be looked at")
    if state[0] == "complete":
        return Holds()
    place = data[0] if data else "the weights"
    if state[0] == "other":
        return Fails(f"{place} is being written by {' '.join(state[1:]) or 'somebody else'}", "run it again")
    return Fails(f"{place} is not whole", "run it again: it goes on where it was")


def seen(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether a revision that another host wrote is seen here; a shared file system may take a minute to show it."""
    verdict = whole(answer, data)
    return Waits(reason=verdict.reason) if isinstance(verdict, Fails) else verdict


def gives(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether a giver runs or not, it is well: who wants from it asks the source when it does not."""
    del answer, data
    return Holds()


def no_partial(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether nothing of a broken copy of ours is left."""
    del data
    state = answer.stdout.split()
    if not answer.ok or not state:
        return CannotTell(answer.stderr.strip() or "the store could not be looked at")
    return Fails("a partial copy is left") if state[0] == "partial" else Holds()


def archive_gone(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether nothing of an image's archive is left."""
    del data
    state = answer.stdout.split()
    if not answer.ok or not state:
        return CannotTell(answer.stderr.strip() or "the archive could not be looked at")
    return Holds() if state[0] == "absent" else Fails("an archive of the image is left")


def image_loaded(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the image is there by its id."""
    lines = [line for line in answer.stdout.splitlines() if line]
    if not answer.ok or len(lines) < 2:
        return CannotTell(answer.stderr.strip() or "the runtime could not be asked")
    there = lines[1].removeprefix("sha256:") == data[0].removeprefix("sha256:")
    return Holds() if there else Fails(f"image {data[0]} is not there: {lines[1]}")


def image_unloaded(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether nothing that this run loaded is left to be removed."""
    del data
    lines = answer.stdout.splitlines()
    if not answer.ok or not lines:
        return CannotTell(answer.stderr.strip() or "the runtime could not be asked")
    return Fails("an image that this run loaded is left") if lines[0] == "ours" else Holds()


PREDICATES: Mapping[str, Predicate] = {
    "weights-whole": whole,
    "weights-seen": seen,
    "gives-or-not": gives,
    "no-partial-weights": no_partial,
    "weights-unchanged": share.unchanged,
    "archive-gone": archive_gone,
    "image-loaded": image_loaded,
    "image-unloaded": image_unloaded,
}


def read_survey(text: str) -> HostStore | None:
    """The answer of the survey; None when it is not one."""
    words: dict[str, str] = {}
    lacks = []
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "lacks":
            lacks.append(value)
        elif key:
            words.setdefault(key, value)
    state, _, kib = words.get("state", "").partition(" ")
    if state not in _STATES or not words.get("path", "").startswith("/"):
        return None
    return HostStore(
        path=words["path"],
        state=state,
        partial_kib=int(kib) if kib.isascii() and kib.isdigit() and len(kib) < 19 else 0,
        free_kib=_free(words.get("free", "")),
        lacks=tuple(lacks),
        writable=words.get("writable") == "yes",
        writer=words.get("writer", ""),
    )


def _free(row: str) -> int | None:
    """Available KiB in the last row of `df -Pk`; None when there was none."""
    cells = row.split()
    for at, cell in enumerate(cells):
        if cell.endswith("%") and cell[:-1].isdigit() and at >= 3 and cells[at - 1].lstrip("-").isdigit():
            return max(0, int(cells[at - 1]))
    return None
