"""Time-outs of a client's socket, with pauses of the process and without."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import gevent
import pytest
from gevent import monkey

from corosrv.base.waits import AwakeClock, awake_clock
from corosrv.web.http.listener import PatientSocket

Ends = tuple[PatientSocket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The server's end, with a time-out of 0.2 s, and the client's."""
    left, right = socket.socketpair()
    with PatientSocket(fileno=left.detach()) as server, right:
        server.settimeout(0.2)
        yield server, right


@pytest.fixture
def beaten_clock() -> Iterator[AwakeClock]:
    """The clock of the process, which a test beats."""
    yield awake_clock
    awake_clock.stop()


def pause(seconds: float) -> None:
    """Stops everything, as a signal would."""
    monkey.get_original("time", "sleep")(seconds)


def test_a_client_that_sends_nothing_is_given_up(ends: Ends) -> None:
    with gevent.Timeout(20), pytest.raises(TimeoutError):
        ends[0].recv(1)


def test_what_came_during_a_pause_is_read(ends: Ends) -> None:
    server, client = ends
    reading = gevent.spawn(server.recv, 5)
    gevent.idle()

    client.sendall(b"hello")
    pause(0.6)

    assert reading.get(timeout=20) == b"hello"


def test_what_comes_after_a_pause_is_read(ends: Ends) -> None:
    server, client = ends
    reading = gevent.spawn(server.recv, 5)
    gevent.idle()

    pause(0.6)
    gevent.spawn_later(0.1, client.sendall, b"hello")

    assert reading.get(timeout=20) == b"hello"


def test_a_client_that_is_silent_after_a_pause_is_given_up_too(ends: Ends) -> None:
    reading = gevent.spawn(ends[0].recv, 5)
    gevent.idle()

    pause(0.6)

    with pytest.raises(TimeoutError):
        reading.get(timeout=20)


def test_a_client_that_accepts_nothing_is_given_up_soon(ends: Ends) -> None:
    began = time.monotonic()

    with gevent.Timeout(20), pytest.raises(TimeoutError):
        ends[0].sendall(b"x" * 10_000_000)

    assert time.monotonic() - began < 10


def test_a_client_that_accepts_a_little_again_and_again_is_given_up(ends: Ends) -> None:
    server, client = ends
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.setblocking(False)

    def sip() -> None:
        while True:
            gevent.sleep(0.05)
            client.recv(8192)

    sipping = gevent.spawn(sip)
    with gevent.Timeout(10), pytest.raises(TimeoutError):
        server.sendall(b"x" * 10_000_000)
    sipping.kill()


def test_a_client_that_reads_after_a_pause_gets_everything(ends: Ends, beaten_clock: AwakeClock) -> None:
    server, client = ends
    data = b"x" * 2_000_000
    beaten_clock.beat()
    sending = gevent.spawn(server.sendall, data)
    gevent.idle()
    pause(1.8)
    reading = gevent.get_hub().threadpool.spawn(read_exactly, client, len(data))

    sending.get(timeout=5)

    assert reading.get(timeout=5) == data


def read_exactly(client: socket.socket, size: int) -> bytes:
    client.setblocking(True)
    data = bytearray()
    while len(data) < size:
        data += client.recv(65_536)
    return bytes(data)
