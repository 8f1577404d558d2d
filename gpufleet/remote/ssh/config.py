"""Asks the `ssh` program what it would do for a host."""

from __future__ import annotations

import getpass
import glob
import os
import shutil
import subprocess  # noqa: TID251 this is the one question to another program that this room asks
import threading
from dataclasses import replace
from pathlib import Path

from gpufleet.errors import HostUnreachable
from gpufleet.paths import expanded
from gpufleet.remote.environment import without_secrets
from gpufleet.remote.ssh import options as ssh_options
from gpufleet.remote.ssh.alike import Patterns, for_host, patterns
from gpufleet.remote.ssh.options import Asked, SshOptions
from gpufleet.remote.target import Target

SYSTEM = "/etc/ssh/ssh_config"
STOCK = "/usr/bin/ssh"
"""The build whose system-wide file is known; another one may read a file that we do not."""


class SshConfig:
    """Answers of `ssh -G`, each asked once a process. Safe to use from several threads.

    Hosts of which the configuration speaks alike share one answer: starting `ssh` costs more than a whole login.
    """

    def __init__(self, program: str = "ssh") -> None:
        self._program = program
        self._answers: dict[Asked, SshOptions] = {}
        self._shared: dict[tuple[Asked, tuple[bool, ...]], tuple[str, str]] = {}
        self._patterns: dict[str | None, Patterns] = {}
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def route(self, target: Target) -> tuple[SshOptions, ...]:
        """All hops to a target; raises `HostUnreachable` when the configuration cannot be read."""
        try:
            return ssh_options.route(target, self.look)
        except ValueError as wrong:
            raise HostUnreachable(
                str(wrong),
                where=target.name,
                hints=("correct `proxy_jump` in the inventory or in ssh_config",),
            ) from None
        except HostUnreachable as wrong:
            raise HostUnreachable(wrong.summary, where=target.name, hints=wrong.hints) from None

    def look(self, asked: Asked) -> SshOptions:
        """What `ssh` would do; sensible defaults where it is not installed."""
        with self._lock:
            known = self._answers.get(asked)
        if known is None:
            known = self._answer(asked)
            with self._lock:
                self._answers[asked] = known
        return known

    def _answer(self, asked: Asked) -> SshOptions:
        """From an answer for a host like this one, or asked."""
        signature = self._signature(asked)
        if signature is None:
            text = self._ask(asked)
        else:
            kind = (replace(asked, host=""), signature)
            with self._asking:
                shared = self._shared.get(kind)
                text = for_host(shared[1], shared[0], asked.host) if shared else None
                if text is None:
                    text = self._ask(asked)
                    if text is not None:
                        self._shared[kind] = (asked.host, text)
        if text is None:
            return ssh_options.defaults(asked, getpass.getuser())
        return ssh_options.parse(text, asked)

    def _signature(self, asked: Asked) -> tuple[bool, ...] | None:
        with self._asking:
            if asked.config_file not in self._patterns:
                self._patterns[asked.config_file] = self._read(asked.config_file)
        return self._patterns[asked.config_file].signature(asked.host)

    def _read(self, config_file: str | None) -> Patterns:
        """The `Host` lines of the files that `ssh` would read."""
        if shutil.which(self._program) != STOCK:
            return Patterns(None)
        if config_file is not None:
            files = [expanded(config_file)]
        else:
            files = [path for path in (expanded("~/.ssh/config"), Path(SYSTEM)) if path.exists()]
        texts = []
        for path in files:
            text = _text(path)
            if text is None:
                return Patterns(None)
            texts.append(text)
        return patterns(texts, _included)

    def _ask(self, asked: Asked) -> str | None:
        """The text of `ssh -G`; None where there is no `ssh`."""
        argv = [self._program, "-G", "-T"]
        if asked.config_file is not None:
            argv += ["-F", str(expanded(asked.config_file))]
        if asked.user is not None:
            argv += ["-l", asked.user]
        if asked.port is not None:
            argv += ["-p", str(asked.port)]
        try:
            answer = subprocess.run(
                [*argv, "--", asked.host],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                env=without_secrets(os.environ),
                timeout=20,
                check=False,
            )
        except FileNotFoundError:
            return None
        except subprocess.TimeoutExpired:
            raise HostUnreachable(
                f"`ssh -G {asked.host}` gave no answer within 20 s",
                hints=("look for a `Match exec` in ssh_config that hangs",),
            ) from None
        if answer.returncode != 0:
            said = answer.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
            raise HostUnreachable(
                f"ssh cannot read its configuration for {asked.host}: {said[0]}",
                hints=(f"correct it until `ssh -G {asked.host}` answers",),
            )
        return answer.stdout.decode("utf-8", "replace")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _included(pattern: str) -> list[str] | None:
    """The files of one `Include`; a relative one may stand beside either file, and both are looked at."""
    if "%" in pattern or "$" in pattern:
        return None
    roots = [""] if pattern.startswith(("/", "~")) else [str(expanded("~/.ssh")), "/etc/ssh"]
    found: list[str] = []
    for root in roots:
        for name in sorted(glob.glob(os.path.join(root, expanded(pattern)))):  # noqa: PTH118, PTH207  # the pattern is no path
            text = _text(Path(name))
            if text is None:
                return None
            found.append(text)
    return found
