"""The global options, wherever they stand on the command line, as one value."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpufleet.errors import UsageError
from gpufleet.paths import expanded

VALUED = {
    "--inventory": "inventory",
    "-i": "inventory",
    "--output": "output",
    "-o": "output",
    "--forks": "forks",
    "--state-dir": "state_dir",
    "--lock-wait": "lock_wait",
}
FLAGS = {
    "--no-input": "no_input",
    "--yes": "yes",
    "-y": "yes",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Global options.

    Attributes:
        inventory: the file that was named, or None: then `./inventory.yaml`.
        forks: hosts worked on at once.
        lock_wait: seconds to wait for leases that others hold.
        state_dir: journals, routes, tokens, keys; created by whoever writes there first.
        proxies: admin addresses of the proxies that are asked what is in flight before a replica is stopped.
        proxies_named: somebody named them, so that there are no others.
    """

    inventory: Path | None = None
    output: Literal["text", "json"] = "text"
    no_input: bool = False
    yes: bool = False
    forks: int = 32
    state_dir: Path = Path()
    lock_wait: float = 0.0
    quiet: bool = False
    verbose: bool = False
    proxies: tuple[str, ...] = ("127.0.0.1:8081",)
    proxies_named: bool = False

    @property
    def interactive(self) -> bool:
        """Whether a question may be asked: a terminal on both ends, text output, and nobody said no."""
        ends = (sys.stdin, sys.stderr)  # None when it was closed before we started
        on_terminal = all(end is not None and end.isatty() for end in ends)
        return not self.no_input and self.output == "text" and on_terminal


_current = Settings()


def current() -> Settings:
    """The settings of this invocation."""
    return _current


def install(settings: Settings) -> None:
    """Make `settings` the ones of this invocation."""
    global _current
    _current = settings


def default_state_dir() -> Path:
    """`GPUFLEET_STATE`, else the platform's state directory (XDG Base Directory Specification 0.8)."""
    named = os.environ.get("GPUFLEET_STATE")
    if named:
        return expanded(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "gpufleet"


def _proxies() -> tuple[str, ...]:
    """`GPUFLEET_PROXIES`: `HOST:PORT` of admin addresses, separated by commas; else the default of `proxy serve`."""
    words = [word.strip() for word in os.environ.get("GPUFLEET_PROXIES", "").split(",") if word.strip()]
    for word in words:
        host, colon, port = word.rpartition(":")
        if not host or not colon or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(
                f"GPUFLEET_PROXIES has `{word}`, which is not HOST:PORT",
                hints=("for example 127.0.0.1:8081",),
            )
    return tuple(words) or Settings().proxies


def split(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Take the global options out of a command line, before and after the command; `--` ends the search.

    Raises:
        UsageError: an option without its value, or a value out of range.
    """
    found: dict[str, object] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            rest.append(word)
            rest.extend(words)
            break
        name, equals, value = word.partition("=")
        if name in VALUED and (equals or not word.startswith("--") or name == word):
            if not equals:
                value = next(words, "")
                if not value or value == "--":
                    raise UsageError(f"option `{name}` needs a value")
            found[VALUED[name]] = value
        elif word in FLAGS:
            found[FLAGS[word]] = True
        elif len(word) > 2 and word[0] == "-" and all(f"-{letter}" in FLAGS for letter in word[1:]):
            found.update({FLAGS[f"-{letter}"]: True for letter in word[1:]})
        else:
            rest.append(word)
    return _settings(found), rest


def _settings(found: dict[str, object]) -> Settings:
    inventory = found.get("inventory") or os.environ.get("GPUFLEET_INVENTORY")
    output = found.get("output", "text")
    if output != "text" and output != "json":  # noqa: PLR1714  # mypy narrows by comparison, not by membership
        raise UsageError(f"option `--output` takes text or json, not `{output}`")
    settings = Settings(
        inventory=expanded(str(inventory)) if inventory else None,
        output=output,
        no_input=bool(found.get("no_input")),
        yes=bool(found.get("yes")),
        quiet=bool(found.get("quiet")),
        verbose=bool(found.get("verbose")),
        state_dir=expanded(str(found["state_dir"])) if "state_dir" in found else default_state_dir(),
        proxies=_proxies(),
        proxies_named=bool(os.environ.get("GPUFLEET_PROXIES", "").strip(" ,")),
    )
    wait = str(found.get("lock_wait", "0"))
    if not wait.isdigit() or int(wait) > 86_400:
        raise UsageError(f"option `--lock-wait` takes seconds from 0 to 86400, not `{wait}`")
    settings = replace(settings, lock_wait=float(wait))
    forks = found.get("forks")
    if forks is None:
        return settings
    if not str(forks).isdigit() or not 1 <= int(str(forks)) <= 512:
        raise UsageError(f"option `--forks` takes a number from 1 to 512, not `{forks}`")
    return replace(settings, forks=int(str(forks)))
