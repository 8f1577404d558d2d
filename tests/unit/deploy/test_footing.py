"""What a plan rests on: everything that moves is told, everything that moves by itself is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.deploy.footing import footing, moved
from gpufleet.hosts.model import Known, Unknown
from tests.kit import fleet_facts as facts


def cut(**changes):
    return replace(facts.mig_slice("a", 0, 0), **changes)


def host(*, slices=None, state="running", spec="s1", **changes):
    gpus = (facts.gpu("a", 0, used=changes.pop("used", 4), instances=slices), facts.gpu("a", 1))
    one = facts.container("c", state=state, labels={"gpufleet.spec": spec})
    return facts.host("a", **{"gpus": gpus, "containers": (one,), **changes})


def told(before, now):
    return [row.message for row in moved({"a": footing(before)}, {"a": footing(now)})]


def test_what_moves_by_itself_is_no_movement():
    assert told(host(), host(used=40_000, listening=(22, 8000), at="2027-01-01T00:00:00Z")) == []


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (host(), host(state="exited"), "has stopped"),
        (host(state="exited"), host(), "runs now"),
        (host(), host(spec="s2"), "has spec s2, and had s1"),
        (host(), host(boot_id=Known("b1")), "it was booted since"),
        (host(), host(boot_id=Unknown("no /proc")), "its boot id could not be read now"),
        (host(), host(containers=Unknown("daemon hangs")), "its containers could not be read now"),
        (host(gpus=Unknown("driver")), host(), "its GPUs could not be read then"),
        (host(), host(gpus=(facts.gpu("a", 0),)), "GPU 1 (GPU-a-1) is gone"),
        (host(), host(slices=(cut(),)), "MIG of GPU 0 is on, and was off"),
        (host(slices=(cut(),)), host(slices=(cut(start=Known(4)),)), "3g.40gb@4"),
        (
            host(slices=(cut(),)),
            host(slices=(cut(uuid="MIG-other"),)),
            "MIG-other, and were 3g.40gb@0 MIG-a-0-0",
        ),
        (host(slices=(cut(),)), host(slices=()), "are none, and were"),
    ],
)
def test_each_movement_is_one_line_and_none_the_other_way_round(before, now, words):
    (line,) = told(before, now)
    assert words in line
    assert len(told(now, before)) == 1
    assert told(now, now) == []


def test_hosts_that_come_and_go_are_told():
    one = footing(host())
    assert [row.where for row in moved({"a": one}, {"a": one, "b": one})] == ["b"]
    assert [row.where for row in moved({"a": one, "b": one}, {"a": one})] == ["b"]
