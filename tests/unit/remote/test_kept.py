"""One connection a host for a whole command line, whoever opens it and however often."""

from __future__ import annotations

import threading

import pytest

from gpufleet.errors import HostUnreachable
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.kept import KeptTransport
from gpufleet.remote.result import Exit, Lost, Outcome

A, B = HostName("a"), HostName("b")
LOOK = Command(argv=("true",), mutates=False)


class Counted:
    """A transport that counts its logins; its sessions lose what they are told to lose."""

    def __init__(self) -> None:
        self.opened: list[HostName] = []
        self.losing: set[HostName] = set()
        self.away: set[HostName] = set()
        self.closed = False

    def open(self, host: HostName) -> CountedSession:
        if host in self.away:
            raise HostUnreachable("it is off", where=host)
        self.opened.append(host)
        return CountedSession(self, host)

    def close(self) -> None:
        self.closed = True


class CountedSession:
    noisy = True

    def __init__(self, below: Counted, host: HostName) -> None:
        self._below, self._host = below, host

    def run(self, command: Command) -> Outcome:
        del command
        return Lost(reason="cut", sent=True) if self._host in self._below.losing else Exit(code=0)

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        del content, path, mode
        return self.run(LOOK)

    def close(self) -> None:
        raise AssertionError("a kept session is not closed by those who use it")


def test_a_host_is_logged_into_once_however_often_and_by_whomever_it_is_opened():
    below = Counted()
    kept = KeptTransport(below)

    def use(host: HostName) -> bool:
        session = kept.open(host)
        answer = session.run(LOOK)
        session.close()
        return answer == Exit(code=0) and session.noisy

    for _ in range(3):
        assert fanout((A, B), use) == {A: True, B: True}
    threads = [threading.Thread(target=use, args=(A,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(below.opened) == [A, B]


@pytest.mark.parametrize("way", ["run", "put"])
def test_a_session_that_lost_an_answer_is_not_handed_out_again(way):
    below = Counted()
    kept = KeptTransport(below)
    session = kept.open(A)
    below.losing.add(A)
    lost = session.run(LOOK) if way == "run" else session.put(b"", "~/x", 0o600)
    assert lost == Lost(reason="cut", sent=True)
    below.losing.clear()
    assert kept.open(A).run(LOOK) == Exit(code=0)
    assert below.opened == [A, A]
    session.run(LOOK)  # whoever still has the old one may use it
    kept.open(A)
    assert below.opened == [A, A]


def test_a_host_that_was_not_reached_is_tried_again_when_asked_again():
    below = Counted()
    kept = KeptTransport(below)
    below.away.add(A)
    with pytest.raises(HostUnreachable):
        kept.open(A)
    below.away.clear()
    assert kept.open(A).run(LOOK) == Exit(code=0)


def test_the_end_closes_what_lies_below():
    below = Counted()
    kept = KeptTransport(below)
    kept.open(A)
    kept.close()
    assert below.closed
