"""The short way through gunicorn's socket: framed, complete, and only where it is allowed."""

import socket
from collections.abc import Iterator

import gevent
import gevent.socket
import pytest

from corosrv.http.direct import DirectSender, direct_sender
from tests.support.engines import TIMEOUT


@pytest.fixture
def pair() -> Iterator[tuple[gevent.socket.socket, gevent.socket.socket]]:
    """Two ends of a connection that keeps little."""
    server, client = (gevent.socket.socket(fileno=end.detach()) for end in socket.socketpair())
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with server, client:
        yield server, client


def received(client: gevent.socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65_536), b""))


def test_a_piece_is_a_chunk_of_http(pair):
    server, client = pair

    DirectSender(server).send(b"x" * 17)

    assert client.recv(100) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_a_slow_client_gets_everything_in_order(pair):
    server, client = pair
    pieces = [bytes([65 + i]) * 50_000 for i in range(5)]
    reading = gevent.spawn(received, client)

    sender = DirectSender(server)
    sent_whole = []
    for piece in pieces:
        sent_whole.append(sender.send(piece))
        sender.flush()
    server.shutdown(socket.SHUT_WR)

    assert reading.get(timeout=TIMEOUT) == b"".join(b"C350\r\n" + piece + b"\r\n" for piece in pieces)
    assert False in sent_whole  # or the client was not slow


def test_a_client_that_takes_nothing_is_given_up(pair):
    server, _ = pair
    server.settimeout(0.05)

    sender = DirectSender(server)

    assert not sender.send(b"x" * 1_000_000)

    with pytest.raises(TimeoutError):
        sender.flush()


def test_a_client_that_left_is_an_error_of_the_socket(pair):
    server, client = pair
    client.close()

    with pytest.raises(OSError, match=r"\[Errno"):
        DirectSender(server).send(b"x")


@pytest.mark.parametrize("start_response", [lambda status, headers: None, [].append])
def test_other_servers_and_middleware_take_the_ordinary_way(start_response):
    assert direct_sender(start_response) is None
