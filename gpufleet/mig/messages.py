"""What nvidia-smi says of a change: done, refused, or nobody knows; and what to do about it.

Theory. The status is no witness: a mode that is only pending, and a card that cannot have the mode at all, both end
with 0, and a list of instances that fails half way leaves what it made before. So the words decide, wherever they
stand (nvidia-smi writes errors to standard output, at times under the header of a table), a status that contradicts
them makes the answer unknown, and whoever asked looks at the GPU again whatever was said. Words are those of captured
outputs of R450 to R595; the statuses are nvidia-smi(1)'s list and 18, which is NVML's number. The statuses of "in use"
(19) and "insufficient resources" (23) are NVML's numbers that nobody has shown for nvidia-smi: nothing rests on them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Said(StrEnum):
    """The three answers. `DONE` is what it says, never a proof; `REFUSED` may have left a part behind."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Verb(StrEnum):
    """What was asked of nvidia-smi."""

    MODE = "-mig"
    RESET = "--gpu-reset"
    CREATE = "-cgi"
    CREATE_COMPUTE = "-cci"
    DESTROY = "-dgi"
    DESTROY_COMPUTE = "-dci"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class Object:
    """An instance that a line names. `gi` is None where an old driver prints no id; `ci` for a compute instance."""

    gi: int | None
    ci: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one command of nvidia-smi came to.

    Attributes:
        id: stable slug of the message, one of `IDS`.
        line: the line that decided, for people; empty where nothing was said.
        advice: the next step; empty for what went well.
        made: instances that it says it created, in the order of its lines, also before a failure.
        ended: instances that it says it destroyed.
        notes: ids of remarks that decide nothing, such as `persistence-off`.
    """

    id: str
    said: Said
    line: str = ""
    advice: str = ""
    made: tuple[Object, ...] = ()
    ended: tuple[Object, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether it refused or is unknown, and yet says that something was changed."""
        return self.said is not Said.DONE and bool(self.made or self.ended)


@dataclass(frozen=True, slots=True)
class _Row:
    """One message: its words, what they mean, the next step."""

    id: str
    words: str
    said: Said
    advice: str = ""


_HOLDERS = "something holds the GPU: name it with `gpufleet mig show`, stop it and try again"
_NO = Said.REFUSED
_HOST = (
    _Row(
        "driver-down",
        r"couldn't communicate with the NVIDIA driver|NVML: Driver Not Loaded",
        _NO,
        "load the NVIDIA driver of this host (`modprobe nvidia`) or reboot it",
    ),
    _Row(
        "driver-mismatch",
        r"Driver/library version mismatch",
        _NO,
        "the driver's package was upgraded under the loaded kernel module: reboot the host",
    ),
    _Row(
        "gpu-faulted",
        r"GPU requires (?:a )?reset|GPU is lost|fallen off the bus|Unable to determine the device handle",
        _NO,
        "this GPU is broken until it is reset or the host rebooted: no MIG work on it",
    ),
    _Row(
        "no-permission",
        r"Insufficient Permissions|No permission",
        _NO,
        "nvidia-smi needs root for this: let the account run it with `sudo -n`",
    ),
    _Row(
        "no-such-gpu",
        r"No devices were found",
        _NO,
        "no GPU has the UUID that was asked for: list them with `gpufleet mig show`",
    ),
    _Row(
        "no-library",
        r"couldn't find (?:the )?\S*(?:nvidia-ml|NVML)|NVML Shared Library Not Found",
        _NO,
        "install the libraries that belong to this host's NVIDIA driver",
    ),
    _Row(
        "bad-option",
        r"is not a valid (?:field|option)|Invalid combination of input arguments|Option .* is not recognized",
        _NO,
        "this driver's nvidia-smi does not know the option: update the driver",
    ),
)
"""What is wrong with the host, the GPU or the account, whatever was asked."""

_MODE = (
    _Row(
        "mode-pending-in-use",
        r"MIG mode is in pending (?:enable|disable) state for GPU \S+?:\s*In use by another client",
        _NO,
        f"{_HOLDERS}, then reset this GPU alone; setting the mode back cancels it",
    ),
    _Row(
        "mode-pending-not-supported",
        r"MIG mode is in pending (?:enable|disable) state for GPU \S+?:\s*Not Supported",
        _NO,
        "the GPU cannot be reset here, as in a virtual machine: reboot it, or set the mode back to cancel",
    ),
    _Row(
        "mode-pending",
        r"MIG mode is in pending (?:enable|disable) state",
        _NO,
        "the mode waits for a reset of this GPU; setting it back cancels it",
    ),
    _Row(
        "mode-not-supported",
        r"Unable to (?:enable|disable) MIG Mode for GPU \S+: Not Supported",
        _NO,
        "not a MIG GPU, a workstation card in display mode or with an old vBIOS, or a vGPU guest",
    ),
    _Row(
        "mode-in-use",
        r"Unable to (?:enable|disable) MIG Mode for GPU \S+: In use by another client",
        _NO,
        f"{_HOLDERS}; instances that are left hold it too",
    ),
    _Row(
        "mode-unknown",
        r"Unable to (?:enable|disable) MIG Mode for GPU",
        Said.UNKNOWN,
        "read the mode again with `gpufleet mig show`",
    ),
    _Row("mode-set", r"(?:Enabled|Disabled) MIG Mode for GPU", Said.DONE),
)
_RESET = (
    _Row(
        "reset-in-use",
        r"could not be reset|is currently in use by another process",
        _NO,
        f"{_HOLDERS}; nvidia_drm and a missing Fabric Manager block it as well",
    ),
    _Row(
        "reset-not-supported",
        r"Resetting GPU \S+ is not supported",
        _NO,
        "only a reboot of this machine makes the mode effective",
    ),
    _Row("reset", r"was successfully reset", Said.DONE),
)


def _instances(verb: str, noun: str, slug: str, done: str) -> tuple[_Row, ...]:
    """The messages about one kind of instance; the line of the object and the summary under it say the same."""
    subject = rf"(?:Unable|Failed) to {verb} (?:a )?{noun} instances?\b.*:\s*"
    return (
        _Row(
            f"{slug}-in-use",
            subject + "In use by another client",
            _NO,
            _HOLDERS if verb == "create" else f"{_HOLDERS}; compute instances go before their GPU instance",
        ),
        _Row(
            f"{slug}-no-room",
            subject + "Insufficient Resources",
            _NO,
            "it does not fit beside what is there: read the instances again and plan anew",
        ),
        _Row(
            f"{slug}-invalid",
            subject + "Invalid Argument",
            _NO,
            "this GPU does not know the profile, the place or the id: see `gpufleet mig profiles`",
        ),
        _Row(f"{slug}-not-found", subject + "Not Found", _NO, "read the instances again and plan anew"),
        _Row(f"{slug}-not-supported", subject + "Not Supported", _NO, "this GPU or driver cannot do that"),
        _Row(f"{slug}-unknown", subject, Said.UNKNOWN, "read the instances again with `gpufleet mig show`"),
        _Row(done, rf"Successfully {done.rpartition('-')[2]} {noun} instance", Said.DONE),
    )


_EMPTY = (
    _Row("none-found", r"No (?:GPU|compute) instances found", _NO, "there is none: read them again"),
    _Row("mig-off", r"No MIG-enabled devices found", _NO, "MIG is off on this GPU"),
    _Row(
        "not-capable",
        r"No MIG-supported devices found|cannot be cut into slices",
        _NO,
        "this GPU cannot be cut, or not in its present mode (display mode, vBIOS, driver)",
    ),
)
_SHOW = (
    _Row("unknown-error", r"Failed to display [^:]*:", Said.UNKNOWN, "the driver cannot show its instances"),
)
_CREATE = _instances("create", "GPU", "create", "gpu-instance-created")
_CREATE_COMPUTE = _instances("create", "compute", "compute-create", "compute-instance-created")
_DESTROY = _instances("destroy", "GPU", "destroy", "gpu-instance-destroyed")
_DESTROY_COMPUTE = _instances("destroy", "compute", "compute-destroy", "compute-instance-destroyed")

_TABLES: dict[Verb, tuple[_Row, ...]] = {
    Verb.MODE: _MODE,
    Verb.RESET: _RESET,
    # With -C the compute instance is a part of what was asked: its failure decides before the success of the other.
    Verb.CREATE: (*_CREATE[:-1], *_CREATE_COMPUTE[:-1], _CREATE[-1]),
    Verb.CREATE_COMPUTE: _CREATE_COMPUTE,
    Verb.DESTROY: _DESTROY,
    Verb.DESTROY_COMPUTE: _DESTROY_COMPUTE,
    Verb.LOOK: (),
}
_NOTES = (
    ("persistence-off", re.compile(r"Warning: persistence mode is disabled", re.IGNORECASE)),
    ("nvlink-hidden", re.compile(r"Nvlink queries are not supported for Devices in MIG mode", re.IGNORECASE)),
)
_BY_STATUS = {
    4: "no-permission",
    9: "driver-down",
    12: "no-library",
    15: "gpu-faulted",
    18: "driver-mismatch",
}
"""Where no words are known: what nvidia-smi(1) says of the status, and 18."""
_OBJECT = re.compile(
    r"^Successfully (created|destroyed) (GPU|compute) instance(?:\s+ID\s+(\d{1,4}))?"
    r"(?:\s+(?:on|from) GPU\s+\d{1,4}(?:\s+GPU instance ID\s+(\d{1,4}))?)?",
    re.IGNORECASE | re.ASCII,
)
_ALL = (*_HOST, *_EMPTY, *_SHOW, *(row for table in _TABLES.values() for row in table))
_WORDS = {row: re.compile(row.words, re.IGNORECASE) for row in _ALL}
IDS = frozenset(
    {row.id for row in _ALL}
    | {"said", "nothing-said", "no-answer", "no-nvidia-smi", "contradiction", "other-words"}
)
"""Every id that a verdict can have."""


def verb_of(argv: Sequence[str]) -> Verb:
    """What a command line asks; whatever is no change of MIG is a look."""
    words = set(argv)
    for verb in (Verb.CREATE, Verb.CREATE_COMPUTE, Verb.DESTROY, Verb.DESTROY_COMPUTE):
        if verb.value in words:
            return verb
    if words & {"-mig", "--multi-instance-gpu"}:
        return Verb.MODE
    return Verb.RESET if words & {"-r", "--gpu-reset"} else Verb.LOOK


def advice(reason: str) -> str:
    """The next step for words that tell of a host, a GPU or an account in trouble; empty for any others."""
    return next(
        (row.advice for row in (*_HOST, *_EMPTY) if row.id != "none-found" and _WORDS[row].search(reason)), ""
    )


def judge(verb: Verb, text: str, status: int) -> Verdict:
    """The verdict on one command: `text` is all that it printed, on both streams, and `status` how it ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    made, ended = _objects(lines)
    notes = tuple(note for note, words in _NOTES if words.search(text))
    row, line = _find((*_HOST, *_TABLES[verb], *_EMPTY, *_SHOW), lines, verb)
    if row is None:
        return _without_words(verb, lines, status)
    if row.said is Said.DONE and status != 0:
        said, name, advice = Said.UNKNOWN, "contradiction", f"it says so and ended with {status}: look again"
    else:
        said, name, advice = row.said, row.id, row.advice
    return Verdict(id=name, said=said, line=line, advice=advice, made=made, ended=ended, notes=notes)


def _find(rows: Sequence[_Row], lines: Sequence[str], verb: Verb) -> tuple[_Row | None, str]:
    """The first row of the table that some line speaks: what failed stands before what went well."""
    for row in rows:
        for line in lines:
            # A table may hold these words as the value of one cell; there they are no verdict on the command.
            cell = verb is Verb.LOOK and (line.startswith(("|", "<")) or re.match(r"GPU-\S+,|\d+, ", line))
            if not cell and _WORDS[row].search(line):
                return row, line
    return None, ""


def _without_words(verb: Verb, lines: Sequence[str], status: int) -> Verdict:
    first = lines[0] if lines else ""
    if status == 127:
        return Verdict(
            id="no-nvidia-smi", said=_NO, line=first, advice="install the NVIDIA driver's tools on this host"
        )
    if status in {124, 137}:
        return Verdict(
            id="no-answer", said=Said.UNKNOWN, line=first, advice="it did not end in time: look again"
        )
    known = next((row for row in _HOST if row.id == _BY_STATUS.get(status)), None)
    if known is not None:
        return Verdict(id=known.id, said=known.said, line=first, advice=known.advice)
    if verb is Verb.LOOK and lines and status == 0:
        return Verdict(id="said", said=Said.DONE, line=first)
    name = "other-words" if lines else "nothing-said"
    return Verdict(
        id=name, said=Said.UNKNOWN, line=first, advice="look at the GPU again before anything else"
    )


def _objects(lines: Sequence[str]) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    made: list[Object] = []
    ended: list[Object] = []
    for line in lines:
        found = _OBJECT.match(line)
        if found is None:
            continue
        number, parent = _number(found[3]), _number(found[4])
        whole = found[2].lower() == "gpu"
        one = Object(gi=number) if whole else Object(gi=parent, ci=number)
        (made if found[1].lower() == "created" else ended).append(one)
    return tuple(made), tuple(ended)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None
