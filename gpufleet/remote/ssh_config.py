"""Asks the `ssh` program what it would do for a host."""

from __future__ import annotations

import getpass
import os
import subprocess  # noqa: TID251 this is the one question to another program that this room asks
import threading
from pathlib import Path

from gpufleet.errors import HostUnreachable
from gpufleet.remote import ssh_options
from gpufleet.remote.environment import without_secrets
from gpufleet.remote.ssh_options import Asked, SshOptions
from gpufleet.remote.target import Target


class SshConfig:
    """Answers of `ssh -G`, each asked once a process. Safe to use from several threads."""

    def __init__(self, program: str = "ssh") -> None:
        self._program = program
        self._answers: dict[Asked, SshOptions] = {}
        self._lock = threading.Lock()

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
            known = self._ask(asked)
            with self._lock:
                self._answers[asked] = known
        return known

    def _ask(self, asked: Asked) -> SshOptions:
        argv = [self._program, "-G", "-T"]
        if asked.config_file is not None:
            argv += ["-F", str(Path(asked.config_file).expanduser())]
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
            return ssh_options.defaults(asked, getpass.getuser())
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
        return ssh_options.parse(answer.stdout.decode("utf-8", "replace"), asked)
