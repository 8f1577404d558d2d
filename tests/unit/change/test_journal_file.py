"""The run file: private, synced, tail-tolerant, one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.change.records import journal_file
from gpufleet.change.records.document import JournalError, plan_record
from gpufleet.change.records.journal import Opened, Publishing, Reopened, Settled, Turned
from gpufleet.change.records.journal_file import RunBusy, RunSummary
from gpufleet.errors import PreflightFailed, UsageError
from gpufleet.names import RunId
from tests.kit.change_plans import plan, step

RUN = RunId("20260101T000000-abcdef")
FIRST = Opened(RUN, "ann@desk", "seat", ("a",), plan_record(plan(step("a1", "a"))))


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def made(state, clock, *bodies):
    with journal_file.create(state, RUN, clock, FIRST) as file:
        for body in bodies:
            file.append(body)
    return state / "runs" / RUN / "journal.jsonl"


def test_records_are_numbered_and_private(state, clock):
    path = made(state, clock, Turned("asked"), Settled(Ending.UNDONE))
    assert [record.seq for record in journal_file.read(state, RUN)] == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_each_record_is_synced_before_append_returns(state, clock, monkeypatch):
    synced: list[str] = []
    real = os.fsync

    def noted(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        real(number)

    monkeypatch.setattr(os, "fsync", noted)
    path = made(state, clock, Turned("asked"))
    assert synced.count(str(path)) == 2
    assert {str(path.parent), str(state / "runs"), str(state)} <= set(synced)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_dropped_and_cut_off(state, clock, cut):
    path = made(state, clock, Turned("asked"), Publishing())
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [record.seq for record in journal_file.read(state, RUN)] == [1, 2]
    with journal_file.reopen(state, RUN, clock) as file:
        file.append(Reopened(Goal.UNDO))
    assert [type(record.body) for record in journal_file.read(state, RUN)] == [Opened, Turned, Reopened]


def test_garbage_in_the_middle_is_an_error_with_its_line(state, clock):
    path = made(state, clock, Turned("asked"), Publishing())
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-3]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(JournalError) as caught:
        journal_file.read(state, RUN)
    assert caught.value.where == f"{path}:2"
    with pytest.raises(JournalError):
        journal_file.reopen(state, RUN, clock)
    with journal_file.create(state, RunId("20260102T000000-abcdef"), clock, FIRST):
        pass
    assert [bool(found.problem) for found in journal_file.summaries(state)] == [False, True]


def test_one_process_at_a_time(state, clock):
    with journal_file.create(state, RUN, clock, FIRST):
        with pytest.raises(RunBusy):
            journal_file.reopen(state, RUN, clock)
        assert journal_file.summary(state, RUN).busy
    assert not journal_file.summary(state, RUN).busy
    journal_file.reopen(state, RUN, clock).close()


def test_a_full_disk_leaves_the_file_as_it_was(state, clock, monkeypatch):
    with journal_file.create(state, RUN, clock, FIRST) as file:
        before = file.path.read_bytes()

        def half(number, content):
            os.write(number, content[:10])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(journal_file, "_write_whole", half)
            with pytest.raises(JournalError, match="No space left"):
                file.append(Publishing())
        assert file.path.read_bytes() == before
        file.append(Turned("asked"))
    assert len(journal_file.read(state, RUN)) == 2


def test_a_state_directory_that_cannot_be_written_stops_before_anything(tmp_path, clock):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PreflightFailed, match="the journal cannot be created"):
        journal_file.create(tmp_path / "file", RUN, clock, FIRST)


def test_a_run_without_its_first_record_leaves_nothing(state, clock, monkeypatch):
    def full(_number, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_file, "_write_whole", full)
    with pytest.raises(PreflightFailed, match="No space left"):
        journal_file.create(state, RUN, clock, FIRST)
    assert journal_file.summaries(state) == ()


def test_a_place_that_cannot_be_read_is_not_empty(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        journal_file.summaries(tmp_path / "file")


def test_nothing_there(state, clock):
    assert journal_file.summaries(state) == ()
    assert not journal_file.exists(state, RUN)
    for call in (
        lambda: journal_file.read(state, RUN),
        lambda: journal_file.reopen(state, RUN, clock),
        lambda: journal_file.read(state, RunId("../x")),
    ):
        with pytest.raises(UsageError):
            call()


def test_an_empty_journal_says_that_nothing_was_changed(state, clock):
    made(state, clock).write_bytes(b"")
    assert journal_file.summaries(state) == (
        RunSummary(run=RUN, records=(), problem="no record was written; nothing was changed"),
    )


def test_the_seat_is_one_for_ever(state):
    assert journal_file.seat(state) == journal_file.seat(state)
    assert (state / "seat").stat().st_mode & 0o777 == 0o600


def test_run_ids_sort_by_time(clock):
    first = journal_file.new_run_id(clock)
    clock.sleep(1)
    assert first < journal_file.new_run_id(clock)
