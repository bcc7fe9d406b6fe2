"""Two relays with a connection between them, and the local sockets at their ends."""

from __future__ import annotations

import _socket
import contextlib
import os
import socket
from collections.abc import Iterator

import gevent
import pytest

from corosrv.workers.wire import descriptors
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.relay import RawCodec, Relay
from tests.support.waiting import wait_until

Channel = GeventChannel[bytes, bytes]
TIMEOUT = 30.0  # seconds


class Ends:
    """The control channels of the server and of a worker, and of their first lane."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.near = socket.create_connection(listener.getsockname())
        self.far, _ = listener.accept()
        listener.close()
        self._greenlets: list[gevent.Greenlet] = []
        self.server, self.worker = self._relay(self.near, True), self._relay(self.far, False)

    def _relay(self, connection: socket.socket, opens_lanes: bool) -> Channel:
        ours, theirs = _socket.socketpair()
        relay = Relay(connection, theirs, opens_lanes=opens_lanes)
        self._greenlets.append(gevent.spawn(relay.run))
        return channel(ours)

    def open_lane(self) -> tuple[Channel, Channel]:
        ours, theirs = _socket.socketpair()
        self.server.send(b"a lane", [theirs.fileno()])
        theirs.close()
        assert received(self.worker) == b"a lane"
        (fd,) = self.worker.take_fds()
        return channel(ours), channel(_socket.socket(fileno=fd))

    def close(self) -> None:
        self.server.close()
        self.worker.close()
        gevent.joinall(self._greenlets, timeout=TIMEOUT, raise_error=True)
        assert all(greenlet.ready() for greenlet in self._greenlets)


def channel(sock: _socket.socket) -> Channel:
    return GeventChannel(sock, RawCodec(), takes_fds=True)


def received(end: Channel) -> bytes | None:
    with gevent.Timeout(TIMEOUT):
        return end.receive()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    with contextlib.closing(ends):
        yield ends


def test_messages_and_files_pass_both_ways_over_a_lane(ends: Ends):
    ours, theirs = ends.open_lane()
    content = os.urandom(1 << 20) * 9
    fd = descriptors.make([content])

    ours.send(b"a large value", [fd])
    os.close(fd)
    assert received(theirs) == b"a large value"
    (arrived,) = theirs.take_fds()
    theirs.send(b"the same", [arrived])
    assert received(ours) == b"the same"

    (back,) = ours.take_fds()
    assert descriptors.map_value(back, len(content)) == content
    descriptors.close_all([arrived, back])
    for end in (ours, theirs):
        end.close()


def test_a_side_that_does_not_read_stops_the_other_one_and_no_other_lane(ends: Ends):
    ours, theirs = ends.open_lane()
    fast, other = ends.open_lane()
    message = bytes(1 << 20)
    n_sent = 64

    for _ in range(n_sent):
        ours.send(message)
    fast.send(b"passes")

    assert received(other) == b"passes"
    with gevent.Timeout(1, False):  # without the limit all of it is taken in this time
        wait_until(lambda: ours.n_unsent < 48 << 20)
    assert ours.n_unsent >= 48 << 20
    assert [len(received(theirs) or b"") for _ in range(n_sent)] == [1 << 20] * n_sent
    for end in (ours, theirs, fast, other):
        end.close()


def test_a_lane_that_ends_takes_its_last_message_along_and_no_other_lane(ends: Ends):
    ours, theirs = ends.open_lane()
    second, other = ends.open_lane()

    theirs.send(b"the last word")
    theirs.close()

    assert [received(ours), received(ours)] == [b"the last word", None]
    second.send(b"goes on")
    assert received(other) == b"goes on"
    for end in (ours, second, other):
        end.close()


def test_a_file_that_is_not_sealed_ends_its_lane_and_no_other(ends: Ends):
    ours, theirs = ends.open_lane()
    fd = descriptors.create()
    os.write(fd, b"could change")

    theirs.send(b"look", [fd])
    os.close(fd)

    assert [received(ours), received(theirs)] == [None, None]
    ends.worker.send(b"goes on")
    assert received(ends.server) == b"goes on"
    for end in (ours, theirs):
        end.close()


@pytest.mark.parametrize("who", ["server", "worker", "connection"])
def test_whoever_hangs_up_ends_all_lanes_behind_the_last_words(ends: Ends, who: str):
    ours, theirs = ends.open_lane()
    word = bytes(1 << 20)  # more than sockets hold
    theirs.send(word)
    if who == "worker":
        wait_until(lambda: not theirs.n_unsent)
        theirs.close()
        ends.worker.close()
        gevent.sleep(0)
        assert [received(ours), received(ours), received(ends.server)] == [word, None, None]
    else:
        assert received(ours) == word
        ends.server.close() if who == "server" else ends.near.shutdown(socket.SHUT_RDWR)
        assert [received(theirs), received(ends.worker)] == [None, None]
    for end in (ours, theirs):
        end.close()
