"""An operator at a desk: an inventory, a state directory and gpufleet's command line in a process of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.fleet import Fleet

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
"""Seconds after which a command is believed to hang. No case should come near it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command ended with. `fields` is the JSON object of standard output."""

    exit: int
    stdout: str
    stderr: str
    fields: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Everything that was said, for searching."""
        return self.stdout + self.stderr

    def host(self, name: str) -> Mapping[str, Any]:
        """The row of one host."""
        rows: list[Mapping[str, Any]] = [
            row for row in self.fields.get("hosts", []) if row.get("host") == name
        ]
        assert rows, f"no row of {name} in {self}"
        return rows[0]

    def __str__(self) -> str:
        return f"exit {self.exit}\n{self.stdout}\n{self.stderr}"


@dataclass(slots=True)
class Started:
    """A command under way."""

    process: subprocess.Popen[str]
    reached: int = -1
    go: int = -1

    def wait_until_reached(self, within: float = 60) -> bool:
        """Whether the watched record was written; False when the command ended without it."""
        if not select.select([self.reached], [], [], within)[0]:
            raise TimeoutError("the command came to no watched record and did not end")
        return os.read(self.reached, 1) == b"!"

    def let_go(self) -> None:
        """Let a paused command go on."""
        os.write(self.go, b"!")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def answer(self, within: float = PATIENCE) -> Answer:
        """Wait for the end."""
        try:
            stdout, stderr = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(f"the command hangs\n{stdout}\n{stderr}") from None
        try:
            fields = json.loads(stdout)
        except ValueError:
            fields = {}
        return Answer(self.process.returncode, stdout, stderr, fields)


@dataclass(slots=True)
class Operator:
    """One desk.

    Attributes:
        desk: a folder of its own: inventory, pool definitions, state directory, home.
        environment: variables added to the little that a command is given.
    """

    fleet: Fleet
    desk: Path
    hosts: Sequence[str]
    user: str = "ops"
    extra: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.desk / "home").mkdir(parents=True, exist_ok=True)
        self.write_inventory()

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.desk / "state"

    @property
    def inventory(self) -> Path:
        return self.desk / "inventory.yaml"

    def write_inventory(self, text: str | None = None) -> None:
        """The hosts of this desk, or other text."""
        self.inventory.write_text(
            text or self.fleet.inventory(user=self.user, names=self.hosts, extra=self.extra)
        )

    def run(self, *words: str, within: float = PATIENCE) -> Answer:
        """Run a command to its end, as a runbook does: JSON, no questions."""
        with self.start(*words) as started:
            return started.answer(within)

    @contextmanager
    def pause_at(self, pattern: str, *words: str) -> Iterator[Started]:
        """Begin a command that waits at the first journal record that matches `pattern`."""
        reached_read, reached_write = os.pipe()
        go_read, go_write = os.pipe()
        watch = ("tests.real.watched_cli", "pause", pattern, str(reached_write), str(go_read))
        try:
            process = self._popen(watch, words, (reached_write, go_read))
            os.close(reached_write)
            os.close(go_read)
            with _ended(process):
                yield Started(process, reached_read, go_write)
        finally:
            os.close(reached_read)
            os.close(go_write)

    def kill_after(self, record: int, *words: str) -> Answer:
        """Run a command that is killed with -9 as soon as its nth journal record is on disk."""
        process = self._popen(("tests.real.watched_cli", "kill", str(record)), words, ())
        with _ended(process):
            return Started(process).answer()

    @contextmanager
    def start(self, *words: str) -> Iterator[Started]:
        """Begin a command; it is ended with the block at the latest."""
        process = self._popen(("gpufleet",), words, ())
        with _ended(process):
            yield Started(process)

    def _popen(
        self, module: Sequence[str], words: Sequence[str], descriptors: Sequence[int]
    ) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.desk / "home"),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GPUFLEET_INVENTORY": str(self.inventory),
            "GPUFLEET_STATE": str(self.state),
            **self.environment,
        }
        return subprocess.Popen(
            (sys.executable, "-m", *module, "-o", "json", "--no-input", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.desk,
            env=environment,
            pass_fds=descriptors,
        )


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
