"""The lease scripts in the shells that hosts have, and what their answers mean."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import pytest

from gpufleet.change.leases import fence, lease
from gpufleet.change.leases.lease import Answer, Grant, Holder, Standing
from gpufleet.names import HostName, RunId, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit
from tests.kit.shell_hosts import ShellHosts

HOST = HostName("gpu-a")
STEP = StepId("start gpu-a/0")
SHELLS = {"sh": ("/bin/sh",), "bash": ("bash",), "dash": ("dash",), "busybox": ("busybox", "sh")}


@pytest.fixture(params=SHELLS)
def hosts(request, tmp_path):
    if shutil.which(SHELLS[request.param][0]) is None:
        pytest.skip(f"{request.param} is not installed")
    return ShellHosts(tmp_path, shell=SHELLS[request.param])


def holder(number: int, **changes) -> Holder:
    fields = {
        "who": f"ann{number}@desk pid 1",
        "run": f"20260101T00000{number}-abcdef",
        "operation": 'deploy "chat" to $(all)',
        "token": f"{number:032x}",
        "seat": f"{number:016x}",
    }
    return Holder(**{**fields, **changes})


def ask(hosts: ShellHosts, command: Command) -> Answer:
    outcome = hosts.open(HOST).run(command)
    assert isinstance(outcome, Exit)
    answer = lease.parse(outcome)
    assert answer is not None, outcome
    return answer


def take(hosts: ShellHosts, who: Holder) -> Answer:
    return ask(hosts, lease.take(who, b'{"head":1}\n'))


def granted(hosts: ShellHosts, who: Holder) -> Grant:
    answer = take(hosts, who)
    assert answer.standing is Standing.TAKEN, answer
    return Grant(host=HOST, token=who.token, run=RunId(who.run), root=answer.root)


def make_old(hosts: ShellHosts, seconds: int = 1000) -> None:
    """The holder has been silent for so long by the host's own clock."""
    folder = hosts.home(HOST) / ".gpufleet" / "lease"
    then = int(time.time()) - seconds
    for beat in folder.glob("beat-*"):
        beat.write_text(f"{then}\n")
    os.utime(folder, (then, then))


def test_one_takes_it_and_the_other_is_told_who_holds_it(hosts):
    grant = granted(hosts, holder(1))
    assert grant.root == str(hosts.home(HOST) / ".gpufleet")
    answer = take(hosts, holder(2))
    assert answer.standing is Standing.HELD
    assert answer.holder is not None
    assert (answer.holder.who, answer.holder.run) == ("ann1@desk pid 1", holder(1).run)
    assert answer.holder.operation == 'deploy "chat" to $(all)'
    assert answer.holder.age is not None
    assert answer.holder.started is not None


def test_files_are_private_and_the_copy_begins_with_the_head(hosts):
    granted(hosts, holder(1))
    root = hosts.home(HOST) / ".gpufleet"
    copy = root / "runs" / holder(1).run / "journal.jsonl"
    assert copy.read_bytes() == b'{"head":1}\n'
    for path in (root, root / "lease", copy.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in (copy, root / "lease" / "lease.json"):
        assert path.stat().st_mode & 0o777 == 0o600
    found = json.loads((root / "lease" / "lease.json").read_text())
    assert found["token"] == holder(1).token


def test_release_is_for_the_holder_alone_and_completes_the_copy(hosts):
    grant = granted(hosts, holder(1))
    stranger = Grant(host=HOST, token="f" * 32, run=grant.run, root=grant.root)
    assert ask(hosts, lease.release(stranger, "committed", b"")).standing is Standing.LOST
    assert ask(hosts, lease.show()).standing is Standing.HELD
    act(hosts, grant, "true")
    assert ask(hosts, lease.release(grant, "committed", b'{"last":1}\n')).standing is Standing.RELEASED
    folder = hosts.home(HOST) / ".gpufleet" / "runs" / grant.run
    assert folder.joinpath("journal.jsonl").read_bytes().endswith(b'{"last":1}\n')
    assert folder.joinpath("settled").read_text() == "committed\n"
    assert ask(hosts, lease.show()).standing is Standing.FREE
    assert sorted(path.name for path in (hosts.home(HOST) / ".gpufleet").iterdir()) == ["runs"]


def test_a_run_that_never_acted_leaves_nothing(hosts):
    grant = granted(hosts, holder(1))
    ask(hosts, lease.release(grant, "", b""))
    assert list((hosts.home(HOST) / ".gpufleet" / "runs").iterdir()) == []


def test_an_expired_lease_of_a_run_that_never_acted_is_taken_over(hosts):
    old = granted(hosts, holder(1))
    make_old(hosts)
    answer = take(hosts, holder(2))
    assert answer.standing is Standing.TAKEN
    assert answer.over == old.token
    assert ask(hosts, lease.renew(old)).standing is Standing.LOST


def test_an_expired_lease_of_an_open_run_is_offered_to_its_resume(hosts):
    grant = granted(hosts, holder(1))
    act(hosts, grant, "true")
    make_old(hosts)
    answer = take(hosts, holder(2))
    assert answer.standing is Standing.EXPIRED
    assert answer.open_run
    elsewhere = holder(3, run=holder(1).run)
    assert take(hosts, elsewhere).standing is Standing.TAKEN


def test_a_settled_run_whose_release_was_lost_is_no_obstacle(hosts):
    grant = granted(hosts, holder(1))
    act(hosts, grant, "true")
    (hosts.home(HOST) / ".gpufleet" / "runs" / grant.run / "settled").write_text("committed\n")
    make_old(hosts)
    assert take(hosts, holder(2)).standing is Standing.TAKEN


def test_the_same_run_from_the_same_seat_takes_over_at_once_and_from_another_not(hosts):
    granted(hosts, holder(1))
    assert take(hosts, holder(3, run=holder(1).run)).standing is Standing.HELD
    again = holder(3, run=holder(1).run, seat=holder(1).seat)
    assert take(hosts, again).standing is Standing.TAKEN


def test_a_host_whose_clock_went_back_holds_no_lease_longer_than_any(hosts):
    """The holder died, and the host's clock is a day behind its last heartbeat."""
    old = granted(hosts, holder(1))
    make_old(hosts, -86_400)
    shown = ask(hosts, lease.show())
    assert shown.holder is not None
    assert (shown.standing, shown.holder.age) == (Standing.HELD, 0)
    assert take(hosts, holder(2)).standing is Standing.HELD  # it may live, and renew it
    beat = hosts.home(HOST) / ".gpufleet" / "lease" / f"beat-{old.token}"
    assert int(beat.read_text()) <= int(time.time())
    assert ask(hosts, lease.renew(old)).standing is Standing.RENEWED
    make_old(hosts)
    assert take(hosts, holder(2)).standing is Standing.TAKEN


def test_a_half_made_lease_of_a_later_time_blocks_no_longer_than_any(hosts):
    folder = hosts.home(HOST) / ".gpufleet" / "lease"
    folder.mkdir(parents=True)
    os.utime(folder, (time.time() + 86_400,) * 2)
    assert take(hosts, holder(1)).standing is Standing.HELD
    assert folder.stat().st_mtime <= time.time() + 1
    make_old(hosts)
    assert take(hosts, holder(1)).standing is Standing.TAKEN


def test_an_abandoned_takeover_of_a_later_time_does_not_block(hosts):
    granted(hosts, holder(1))
    make_old(hosts)
    mark = hosts.home(HOST) / ".gpufleet" / f"over-{holder(1).token}"
    mark.mkdir()
    os.utime(mark, (time.time() + 86_400,) * 2)
    assert take(hosts, holder(2)).standing is Standing.TAKEN


def test_a_heartbeat_keeps_it(hosts):
    grant = granted(hosts, holder(1))
    make_old(hosts)
    assert ask(hosts, lease.show()).standing is Standing.EXPIRED
    assert ask(hosts, lease.renew(grant)).standing is Standing.RENEWED
    assert take(hosts, holder(2)).standing is Standing.HELD


def test_a_taker_that_died_between_mkdir_and_file_blocks_only_until_it_expires(hosts):
    folder = hosts.home(HOST) / ".gpufleet" / "lease"
    folder.mkdir(parents=True)
    answer = take(hosts, holder(1))
    assert answer.standing is Standing.HELD
    assert answer.holder is not None
    assert "never written" in answer.holder.who
    make_old(hosts)
    assert take(hosts, holder(1)).standing is Standing.TAKEN


def test_an_abandoned_takeover_does_not_block_for_ever(hosts):
    granted(hosts, holder(1))
    make_old(hosts)
    mark = hosts.home(HOST) / ".gpufleet" / f"over-{holder(1).token}"
    mark.mkdir()
    os.utime(mark, (0, 0))
    assert take(hosts, holder(2)).standing is Standing.TAKEN


def test_of_many_takers_of_an_expired_lease_exactly_one_wins(hosts):
    granted(hosts, holder(1))
    make_old(hosts)
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(take(hosts, holder(number))))
        for number in range(2, 7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.standing for answer in answers].count(Standing.TAKEN) == 1


def test_breaking_names_the_token_so_that_a_newer_holder_is_safe(hosts):
    granted(hosts, holder(1))
    assert ask(hosts, lease.break_lease("e" * 32)).standing is Standing.HELD
    assert ask(hosts, lease.break_lease(holder(1).token)).standing is Standing.BROKEN
    assert ask(hosts, lease.show()).standing is Standing.FREE
    assert ask(hosts, lease.break_lease(holder(1).token)).standing is Standing.FREE


def test_unknown_output_is_no_answer():
    assert lease.parse(Exit(code=0, stdout="welcome to gpu-a\n")) is None
    assert lease.parse(Exit(code=0, stdout="gpufleet-lease perhaps 3\n")) is None
    assert lease.parse(Exit(code=0, stdout="gpufleet-lease\n")) is None


def act(hosts: ShellHosts, grant: Grant, *argv: str, **changes) -> Exit:
    command = fence.guarded(Command(argv=argv, mutates=True), grant, STEP, **changes)
    outcome = hosts.open(HOST).run(command)
    assert isinstance(outcome, Exit)
    return outcome


def test_the_guard_lets_the_holder_act_with_words_and_input_untouched(hosts):
    grant = granted(hosts, holder(1))
    hostile = ["$(id)", "a b", "it's", 'say "no"', "", "*", "new\nline", "-n"]
    answer = act(hosts, grant, "printf", "<%s>", *hostile)
    assert answer.stdout == "".join(f"<{word}>" for word in hostile)
    command = Command(
        argv=("one", "two"),
        script='read line\nprintf "%s-%s-%s" "$line" "$1" "$2"\nexit 7',
        stdin=b"fed\n",
        mutates=True,
    )
    outcome = hosts.open(HOST).run(fence.guarded(command, grant, STEP))
    assert outcome == Exit(code=7, stdout="fed-one-two", stderr="")
    assert not list((hosts.home(HOST) / ".gpufleet" / "runs" / grant.run).glob("busy-*"))


def test_the_guard_does_not_touch_the_text_of_a_script(hosts):
    grant = granted(hosts, holder(1))
    command = Command(script="PASSWORD=WORD-PATIENCE; printf '%s' \"$PASSWORD\"", mutates=True)
    for wrapped in (fence.guarded(command, grant, STEP), fence.quiet(command, grant, STEP)):
        assert hosts.open(HOST).run(wrapped) == Exit(code=0, stdout="WORD-PATIENCE")


def test_a_stale_holder_changes_nothing(hosts):
    grant = granted(hosts, holder(1))
    ask(hosts, lease.break_lease(grant.token))
    target = hosts.home(HOST) / "changed"
    for _ in range(2):
        answer = act(hosts, grant, "touch", str(target))
        assert fence.refusal(answer) == fence.FENCED
        assert not target.exists()
        granted(hosts, holder(2)) if ask(hosts, lease.show()).standing is Standing.FREE else None


def test_a_program_that_exits_like_the_guard_is_not_taken_for_it(hosts):
    grant = granted(hosts, holder(1))
    answer = act(hosts, grant, "sh", "-c", "exit 86")
    assert answer.code == 86
    assert fence.refusal(answer) is None


def test_the_copy_is_written_before_the_command_runs(hosts):
    grant = granted(hosts, holder(1))
    copy = hosts.home(HOST) / ".gpufleet" / "runs" / grant.run / "journal.jsonl"
    answer = act(hosts, grant, "cat", str(copy), copy='{"intent":1}\n{"more":"$x"}')
    assert answer.stdout == '{"head":1}\n{"intent":1}\n{"more":"$x"}\n'


def test_no_copy_no_act_but_an_undo_is_not_held_up(hosts):
    grant = granted(hosts, holder(1))
    folder = hosts.home(HOST) / ".gpufleet" / "runs" / grant.run
    shutil.rmtree(folder)
    target = hosts.home(HOST) / "changed"
    assert fence.refusal(act(hosts, grant, "touch", str(target), copy="{}")) == fence.NO_COPY
    assert not target.exists()
    assert act(hosts, grant, "touch", str(target), copy="{}", anyway=True).ok
    assert target.exists()


def test_the_next_command_of_a_step_waits_for_one_whose_answer_was_lost(hosts):
    grant = granted(hosts, holder(1))
    home = hosts.home(HOST)
    script = 'touch "$HOME/begun"; while [ ! -e "$HOME/go" ]; do sleep 0.05; done; touch "$HOME/late"'
    command = fence.guarded(Command(script=script, mutates=True), grant, STEP)
    first = threading.Thread(target=hosts.execute, args=(HOST, command))
    first.start()
    wait_for(home / "begun")
    seen: list[object] = []
    look = fence.quiet(Command(script='[ -e "$HOME/late" ]', mutates=False), grant, STEP)
    second = threading.Thread(target=lambda: seen.append(hosts.execute(HOST, look)))
    second.start()
    other = hosts.execute(HOST, fence.guarded(Command(argv=("true",), mutates=True), grant, StepId("other")))
    assert other == Exit(code=0)
    assert not seen
    (home / "go").touch()
    first.join()
    second.join()
    assert seen == [Exit(code=0)]


def test_a_command_that_never_ends_makes_the_next_one_busy(hosts, monkeypatch):
    monkeypatch.setattr(fence, "PATIENCE", 1)
    grant = granted(hosts, holder(1))
    home = hosts.home(HOST)
    script = 'touch "$HOME/begun"; while [ ! -e "$HOME/go" ]; do sleep 0.05; done'
    first = threading.Thread(
        target=hosts.execute, args=(HOST, fence.guarded(Command(script=script, mutates=True), grant, STEP))
    )
    first.start()
    wait_for(home / "begun")
    assert fence.refusal(act(hosts, grant, "touch", str(home / "changed"))) == fence.BUSY
    assert not (home / "changed").exists()
    (home / "go").touch()
    first.join()


def test_what_a_dead_command_left_behind_does_not_block(hosts):
    grant = granted(hosts, holder(1))
    folder = hosts.home(HOST) / ".gpufleet" / "runs" / grant.run
    (folder / "busy-start_gpu-a_0").write_text(f"{os.getpid()} 1\n")
    assert act(hosts, grant, "true").ok


def wait_for(path, seconds=30.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never appeared"
        time.sleep(0.02)
