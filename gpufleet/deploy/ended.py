"""Why a container is not running, or will not go on: in the words of its log, of the runtime or of the kernel.

Exit statuses are those of `docker run`: 126 and 127 when the program cannot be started, 128 and the signal's number
when a signal ended it (Docker documentation, "Exit status").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.change.model import Fails
from gpufleet.engine.diagnose import Diagnosis, diagnose, tail
from gpufleet.engine.signatures.model import Kind
from gpufleet.redact import scrub

RESTARTS_ALLOWED = 3
"""As the restart policy until readiness; a runtime whose policies cannot be changed goes on restarting."""

SHOWN_LINES = 40
OVER = frozenset({"exited", "dead", "created"})

STATUSES: Mapping[int, tuple[str, str]] = {
    126: ("was not started", "the program in engine.image cannot be run: check its architecture"),
    127: ("was not started", "engine.image does not hold the program: it is no vLLM image"),
    132: ("was ended by the processor (illegal instruction)", "the image needs a newer CPU than this host has"),
    134: ("gave up (abort)", "native code of the engine gave up: look for the first error in the log"),
    137: ("was killed", "the host's memory ran out (`dmesg` tells), or somebody killed it; look at both, then deploy again"),
    139: ("crashed in native code (segmentation fault)", "driver and image do not fit together: compare their CUDA versions"),
    143: ("was ended from outside", "somebody stopped it, or the host went down; deploy again"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """A container that may be at its end.

    Attributes:
        memory_limit: bytes, 0 when there is no limit, None when that is not known.
        error: what the runtime says about a start that failed.
    """

    status: str
    exit_code: int
    restarts: int
    out_of_memory: bool
    memory_limit: int | None
    error: str
    log: str


def ended(seen: Remains) -> Fails | None:
    """The container will not come up by itself; None when it still may."""
    if seen.status == "gone":
        return Fails("the container is gone", "somebody removed it while it was starting; deploy again")
    over, found = seen.status in OVER, diagnose(seen.log)
    if not over and not seen.restarts:
        return _at_its_end(found)
    if seen.out_of_memory:
        return _out_of_memory(seen.memory_limit)
    cause = diagnose(seen.error).real_cause or found.real_cause
    last_try = over or seen.restarts > RESTARTS_ALLOWED
    if cause is not None and (cause.permanent or last_try):
        return Fails(cause.line, cause.fix)
    return _unknown(seen, found) if last_try else None


def _at_its_end(found: Diagnosis) -> Fails | None:
    """A permanent error that nothing came after, while the process still hangs on."""
    cause = found.real_cause
    if cause is None or not (cause.permanent and found.over and (cause.error or found.wrapper_skipped)):
        return None
    return Fails(cause.line, cause.fix)


def _out_of_memory(limit: int | None) -> Fails:
    killed = "the container ran out of memory and was killed"
    if limit is None:
        return Fails(killed, "raise the pool's limits.memory where it is set, else free memory on the host")
    if limit:
        return Fails(
            f"{killed}: its limit is {limit / 2**30:.3g} GiB",
            "raise the pool's limits.memory, or lower kv_offload",
        )
    return Fails(
        f"{killed}: the host has none left",
        "no limits.memory is set, so the host itself ran out: free memory there, place fewer replicas on it, or "
        "lower kv_offload",
    )


def _unknown(seen: Remains, found: Diagnosis) -> Fails:
    over = seen.status in OVER
    crashed = f"crashed {seen.restarts} times" if not over else f"exited with status {seen.exit_code}"
    how, hint = STATUSES.get(seen.exit_code, (crashed, "")) if over else (crashed, "")
    if how != crashed:
        how = f"{how} (status {seen.exit_code})"
    said = scrub(seen.error.strip())
    shown = tail(seen.log, SHOWN_LINES).strip()
    if not shown:
        reason = f"the container {how} without a log"
        return Fails(
            f"{reason}: {said}" if said else reason, hint or "check engine.image: it does not start vLLM"
        )
    wrapped = found.cause is not None and found.cause.kind is Kind.WRAPPER
    last = "its log names no cause" if wrapped else f"its last line: {shown.splitlines()[-1].strip()}"
    first = hint or "no known cause"
    return Fails(f"the container {how}; {said or last}", f"{first}; the end of its log:\n{shown}")
