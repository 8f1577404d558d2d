"""A connection to an engine that is given back is fit for whoever takes it next."""

from __future__ import annotations

import asyncio

import pytest

from gpufleet.proxy.run.upstream import ConnectionPool, UpstreamConnection


class Socket(asyncio.Transport):
    """What a connection does to its transport."""

    def __init__(self):
        super().__init__()
        self.reading, self.open, self.unsent = True, True, 0

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return not self.open

    def get_write_buffer_size(self):
        return self.unsent

    def abort(self):
        self.open = False


@pytest.fixture
def pool():
    loop = asyncio.new_event_loop()
    yield ConnectionPool("127.0.0.1", 1, loop, 1.0)
    loop.close()


def connected(pool):
    connection, transport = UpstreamConnection(pool), Socket()
    connection.connection_made(transport)
    return connection, transport


def test_what_was_paused_reads_again_when_it_is_given_back(pool):
    connection, transport = connected(pool)
    connection.pause()
    assert not transport.reading
    connection.give_back(0.0, reusable=True)
    assert transport.reading
    assert pool.take(None) is connection


@pytest.mark.parametrize("reason", ["not reusable", "unsent", "member left", "closing"])
def test_what_is_not_clean_is_closed(pool, reason):
    connection, transport = connected(pool)
    transport.unsent = 5 if reason == "unsent" else 0
    transport.open = reason != "closing"
    if reason == "member left":
        pool.close()
    connection.give_back(0.0, reusable=reason != "not reusable")
    assert not transport.open
    assert pool.take(None) is None


def test_the_connection_used_last_is_taken_first_and_old_ones_are_closed(pool):
    (old, old_socket), (young, _) = connected(pool), connected(pool)
    old.give_back(1.0, reusable=True)
    young.give_back(5.0, reusable=True)
    pool.close_idle(1.0)
    assert not old_socket.open
    assert pool.take(None) is young
    assert pool.take(None) is None


def test_bytes_that_nobody_asked_for_close_the_connection(pool):
    connection, transport = connected(pool)
    connection.give_back(0.0, reusable=True)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert not transport.open
    assert pool.take(None) is None
