"""An operator's process that dies at a chosen journal record: nothing it says arrives from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpufleet.change.records import journal_file
from gpufleet.deploy.tools import Tools
from gpufleet.errors import HostUnreachable
from gpufleet.lab.faults import FaultScript
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import HostName, RunId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Lost, Outcome
from tests.kit.deploy_site import Site


class Killed(BaseException):
    """The process is gone."""


class Wire:
    """The dead process's connections: from its death on, nothing it says arrives."""

    def __init__(self, real: MemoryTransport) -> None:
        self.real = real
        self.cut = False

    def open(self, host: HostName) -> Any:
        if self.cut:
            raise HostUnreachable("this process is dead", where=host)
        return _Line(self, self.real.open(host))

    def close(self) -> None:
        self.real.close()


class _Line:
    def __init__(self, wire: Wire, session: Any) -> None:
        self.wire, self.session = wire, session

    def run(self, command: Command) -> Outcome:
        return Lost(reason="this process is dead", sent=False) if self.wire.cut else self.session.run(command)

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        return (
            Lost(reason="this process is dead", sent=False)
            if self.wire.cut
            else self.session.put(content, path, mode)
        )

    def close(self) -> None:
        self.session.close()


def killed_after(
    site: Site,
    act: Callable[[Tools], object],
    records: int,
    monkeypatch: pytest.MonkeyPatch,
    faults: FaultScript | None = None,
) -> RunId | None:
    """Act until this many records are on disk; the run, or None when it ended before."""
    wire = Wire(MemoryTransport(site.fleet, faults))
    real = journal_file.JournalFile.append

    def append(file: Any, body: Any) -> Any:
        if len(file.records) < records:
            record = real(file, body)
            if len(file.records) < records:
                return record
        wire.cut = True
        raise Killed

    older = {summary.run for summary in site.runs()}
    with monkeypatch.context() as patch:
        patch.setattr(journal_file.JournalFile, "append", append)
        try:
            act(site.tools(transport=wire))
        except Killed:
            (run,) = [summary.run for summary in site.runs() if summary.run not in older]
            return RunId(run)
    return None
