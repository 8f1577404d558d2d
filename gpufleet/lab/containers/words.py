"""The words after `docker run`: options to a `Wish`, refused where docker's own command line refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpufleet.lab.containers.model import Policy, Published, Refused, Wish
from gpufleet.lab.shell.syntax import Unsupported

_FLAGS = ["d", "detach", "i", "interactive", "t", "tty", "it", "rm", "init", "privileged", "read-only"]
_VALUED = [
    "name",
    "restart",
    "stop-timeout",
    "gpus",
    "device",
    "ipc",
    "ulimit",
    "env-file",
    "e",
    "env",
    "v",
    "volume",
    "mount",
    "p",
    "publish",
    "l",
    "label",
    "entrypoint",
    "shm-size",
    "m",
    "memory",
    "cpus",
    "network",
    "net",
    "u",
    "user",
    "pull",
    "w",
    "workdir",
    "runtime",
    "log-opt",
    "log-driver",
    "hostname",
    "h",
    "health-cmd",
    "health-interval",
    "health-timeout",
    "health-retries",
    "security-opt",
    "cap-add",
    "platform",
]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bkmgt]?)b?", re.IGNORECASE)


@dataclass(slots=True)
class Words:
    """Options as given, and what is left."""

    flags: set[str] = field(default_factory=set)
    values: list[tuple[str, str]] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)

    def all(self, *names: str) -> list[str]:
        """Every value of an option, in order."""
        return [value for name, value in self.values if name in names]

    def last(self, name: str, default: str = "") -> str:
        """The last value of an option."""
        found = self.all(name)
        return found[-1] if found else default


def read_words(
    words: Sequence[str], flags: Sequence[str], valued: Sequence[str], *, stop: bool = False
) -> Words:
    """Options as docker reads them; `stop` ends at the first operand, behind which everything is the container's."""
    found = Words()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            found.operands += rest
            break
        if not word.startswith("-") or word == "-":
            found.operands.append(word)
            if stop:
                found.operands += rest
                break
            continue
        name, given, value = word.lstrip("-").partition("=")
        if name in flags:
            if value != "false":
                found.flags.add(name)
        elif name in valued:
            found.values.append((name, value if given else _following(word, rest)))
        elif not word.startswith("--") and set(name) <= {flag for flag in flags if len(flag) == 1}:
            found.flags |= set(name)
        else:
            raise Unsupported(f"container option {word}")
    return found


def _following(word: str, rest: list[str]) -> str:
    if not rest:
        raise Refused(f"flag needs an argument: {word}", 125)
    return rest.pop(0)


def wish_of(words: Sequence[str], env_file: Callable[[str], str], *, podman: bool) -> tuple[Wish, Words]:
    """The container that these words ask for."""
    read = read_words(words, _FLAGS, _VALUED, stop=True)
    if not read.operands:
        raise Refused('"docker run" requires at least 1 argument.', 125)
    name = read.last("name")
    if name and not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", name):
        raise Refused(
            f"Error response from daemon: Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed.",
            125,
        )
    count, devices = _gpus(read.last("gpus"), podman=podman)
    env: dict[str, str] = {}
    for path in read.all("env-file"):
        for line in env_file(path).split("\n"):
            if line and not line.startswith("#"):
                env[line.partition("=")[0]] = line.partition("=")[2]
    for entry in read.all("e", "env"):
        env[entry.partition("=")[0]] = entry.partition("=")[2]
    entrypoint = read.last("entrypoint")
    wish = Wish(
        name=name,
        image=read.operands[0],
        entrypoint=(entrypoint,) if entrypoint else (),
        arguments=tuple(read.operands[1:]),
        env=tuple(f"{key}={value}" for key, value in env.items()),
        labels=dict(label.partition("=")[::2] for label in read.all("l", "label")),
        published=tuple(_published(text) for text in read.all("p", "publish")),
        policy=Policy.parse(read.last("restart", "no")),
        devices=devices,
        gpu_count=count,
        cdi=tuple(
            word.partition("=")[2] for word in read.all("device") if word.startswith("nvidia.com/gpu=")
        ),
        network=read.last("network") or read.last("net") or "bridge",
        ipc=read.last("ipc", "private"),
        binds=(*read.all("v", "volume"), *(_mount(text) for text in read.all("mount"))),
        ulimits=tuple(read.all("ulimit")),
        memory=_bytes(read.last("memory") or read.last("m")),
        nano_cpus=int(float(read.last("cpus", "0")) * 1e9),
        shm=_bytes(read.last("shm-size")) or 64 << 20,
        stop_timeout=int(read.last("stop-timeout")) if read.last("stop-timeout") else None,
        user=read.last("user") or read.last("u"),
        auto_remove="rm" in read.flags,
    )
    return wish, read


def _gpus(text: str, *, podman: bool) -> tuple[int, tuple[str, ...]]:
    """`all`, a number, or `"device=..."` with the quotes that docker's own CSV wants around a list."""
    if not text or podman:
        return 0, ()
    if text == "all":
        return -1, ()
    if text.isdigit():
        return int(text), ()
    inner = text[1:-1] if text[:1] == text[-1:] == '"' else text
    if inner == text and "," in text:
        raise Refused("cannot set both Count and DeviceIDs on device request.", 125)
    key, _, value = inner.partition("=")
    if key != "device":
        raise Unsupported(f"--gpus {text}")
    return 0, tuple(value.split(","))


def _published(text: str) -> Published:
    found = re.fullmatch(r"(?:(\[[0-9a-f:]+\]|[\d.]+):)?(\d+):(\d+)(?:/tcp)?", text)
    if found is None:
        raise Refused(f"invalid containerPort: {text}.", 125)
    return Published((found[1] or "").strip("[]"), int(found[2]), int(found[3]))


def _mount(text: str) -> str:
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    source = parts.get("source") or parts.get("src", "")
    target = parts.get("target") or parts.get("dst", "")
    return f"{source}:{target}" + (":ro" if "readonly" in parts or "ro" in parts else "")


def _bytes(text: str) -> int:
    if not text:
        return 0
    found = _SIZE.fullmatch(text)
    if found is None:
        raise Refused(f'invalid argument "{text}" for "-m, --memory" flag: invalid size: \'{text}\'.', 125)
    return int(float(found[1]) * 1024 ** "bkmgt".index(found[2].lower() or "b"))
