"""How slowly a client may send."""

from __future__ import annotations

import socket
import time

import gevent
import pytest
from gevent import socket as gevent_socket
from gunicorn.http.errors import LimitRequestHeaders

from corosrv.web.http.connection import MAX_HEAD_BYTES, Pace, PacedUnreader, TooSlow


@pytest.fixture
def ends():
    """Returns the unreader's end of a connection, and the client's."""
    left, right = socket.socketpair()
    reading = gevent_socket.socket(fileno=left.detach())
    with reading, right:
        yield reading, right


def begun(seconds: float, **more: float) -> Pace:
    return Pace(time.monotonic(), seconds, **more)


@pytest.mark.parametrize(
    ("now", "n_read", "remaining"),
    [(100, 0, 10), (105, 0, 5), (110, 0, 0), (105, 500, 10), (110, 10_000, 20), (130, 10**9, 0), (131, 10**9, -1)],
)
def test_bytes_that_come_put_the_end_off_and_never_beyond_the_whole_time(now, n_read, remaining):
    pace = Pace(began=100, limit=30, grace=10, rate=100, n_read=n_read)

    assert pace.remaining(now) == remaining


def test_what_comes_in_time_is_read(ends):
    reading, client = ends
    unreader = PacedUnreader(reading)
    unreader.begin_body(begun(5))
    client.sendall(b"hello")

    assert unreader.chunk() == b"hello"
    assert reading.gettimeout() is None


def test_what_is_there_is_read_from_a_client_whose_time_is_over(ends):
    reading, client = ends
    unreader = PacedUnreader(reading)
    unreader.begin_body(begun(0))
    client.sendall(b"hello")

    assert unreader.chunk() == b"hello"
    with pytest.raises(TooSlow):
        unreader.chunk()


@pytest.mark.parametrize("pace", [{"seconds": 0.05}, {"seconds": 5, "grace": 0.05}, {"seconds": 0}])
def test_what_does_not_come_in_time_is_too_slow(ends, pace):
    unreader = PacedUnreader(ends[0])
    unreader.begin_body(begun(**pace))

    with gevent.Timeout(20), pytest.raises(TooSlow):
        unreader.chunk()


def test_behind_the_line_the_head_has_its_own_time(ends):
    reading, client = ends
    unreader = PacedUnreader(reading)
    unreader.begin_head(line=begun(0.05), head=begun(5))
    client.sendall(b"GET / HTTP/1.1\r\n")
    unreader.chunk()
    gevent.spawn_later(0.2, client.sendall, b"Host: a\r\n")

    with gevent.Timeout(20):
        assert unreader.chunk() == b"Host: a\r\n"


def test_a_line_that_is_there_already_counts(ends):
    unreader = PacedUnreader(ends[0])
    unreader.unread(b"GET / HTTP/1.1\r\n")
    unreader.begin_head(line=begun(0), head=begun(5))
    ends[1].sendall(b"x")

    assert unreader.has_buffered
    assert unreader.chunk() == b"x"


def test_a_head_without_end_is_refused_and_a_body_is_not(ends):
    reading, client = ends
    unreader = PacedUnreader(reading)
    sending = gevent_socket.socket(fileno=client.detach())
    gevent.spawn(sending.sendall, b"x" * (3 * MAX_HEAD_BYTES))

    unreader.begin_head(begun(5), begun(5))
    with pytest.raises(LimitRequestHeaders):
        list(iter(unreader.chunk, b""))
    unreader.begin_body(begun(5))
    n_read = 0
    while n_read < MAX_HEAD_BYTES:
        n_read += len(unreader.chunk())
    sending.close()


def test_a_client_that_always_has_more_lets_the_others_run(ends):
    reading, client = ends
    unreader = PacedUnreader(reading)
    unreader.begin_body(begun(30))
    client.setblocking(False)
    turns: list[None] = []
    other = gevent.spawn(lambda: [turns.append(gevent.sleep(0.001)) for _ in range(1000)])
    deadline = time.monotonic() + 10
    while len(turns) < 3 and time.monotonic() < deadline:
        client.send(b"x")
        unreader.chunk()
    other.kill()

    assert len(turns) >= 3
