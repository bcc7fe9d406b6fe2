"""Noticing that a client went away: closed, reset, and with a request still in its pipe."""

import socket
import struct
from collections.abc import Iterator

import gevent
import gevent.event
import gevent.socket
import pytest

from corosrv.web.http.client import ClientWatch
from tests.support.engines import TIMEOUT

Pair = tuple[gevent.socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The server's end of a TCP connection, and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    server = gevent.socket.socket(fileno=accepted.detach())
    with server, client:
        yield server, client


class Watched:
    """A watch, and how often it called."""

    def __init__(self, server: gevent.socket.socket) -> None:
        self.n_calls = 0
        self._called = gevent.event.Event()
        self.watch = ClientWatch({"gunicorn.socket": server}, self._on_gone)

    def _on_gone(self) -> None:
        self.n_calls += 1
        self._called.set()

    def wait(self) -> bool:
        return self._called.wait(TIMEOUT)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def let_the_hub_look() -> None:
    """Two rounds of the loop: whatever is readable has been seen after them."""
    gevent.sleep(0.01)


@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda client: client.shutdown(socket.SHUT_WR)])
def test_a_client_that_leaves_is_noticed_once(pair, leave):
    server, client = pair
    watched = Watched(server)

    leave(client)

    assert watched.wait()
    let_the_hub_look()
    assert watched.n_calls == 1
    assert watched.watch.is_gone


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_left_before_is_noticed(pair, leave):
    server, client = pair
    leave(client)

    watched = Watched(server)

    assert watched.wait()


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_pipelined_request_does_not_hide_that_the_client_leaves(pair, leave):
    server, client = pair
    watched = Watched(server)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    let_the_hub_look()
    assert not watched.watch.is_gone

    leave(client)

    assert watched.wait()
    assert watched.n_calls == 1


def test_a_pipelined_request_stays_in_the_pipe(pair):
    server, client = pair
    watched = Watched(server)
    client.sendall(b"next")
    let_the_hub_look()

    watched.watch.close()

    assert server.recv(10) == b"next"
    assert not watched.watch.is_gone


def test_a_closed_watch_calls_nobody(pair):
    server, client = pair
    watched = Watched(server)
    watched.watch.close()
    watched.watch.close()

    client.close()
    let_the_hub_look()

    assert watched.n_calls == 0


def test_nothing_is_watched_without_the_server_s_socket():
    watch = ClientWatch({}, on_gone=lambda: pytest.fail("nobody left"))

    let_the_hub_look()
    watch.close()

    assert not watch.is_gone


def test_the_watch_may_be_closed_by_what_it_calls(pair):
    server, client = pair
    called = gevent.event.Event()
    watch = ClientWatch({"gunicorn.socket": server}, lambda: (watch.close(), called.set()))

    client.close()

    assert called.wait(TIMEOUT)
