"""The short way through gunicorn's socket: framed, complete, and only where it is allowed."""

import socket
from collections.abc import Iterator

import gevent
import gevent.socket
import pytest
from gunicorn.config import Config
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.web.http.message import DirectSender, HttpResponse, direct_sender
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.sse import EventStream, StreamLimits
from tests.support.engines import TIMEOUT
from tests.support.readers import HandDrivenReader


@pytest.fixture
def pair() -> Iterator[tuple[gevent.socket.socket, gevent.socket.socket]]:
    """Two ends of a connection that keeps little."""
    server, client = (gevent.socket.socket(fileno=end.detach()) for end in socket.socketpair())
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with server, client:
        yield server, client


def begun(server: gevent.socket.socket) -> HttpResponse:
    """Returns an answer that has its status and its headers, which are not sent yet."""
    request = Request(Config(), IterUnreader([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"]), ("127.0.0.1", 1))
    answer = HttpResponse(request, server, Config())
    answer.start_response("200 OK", [])
    return answer


def received(client: gevent.socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65_536), b""))


def test_a_piece_is_a_chunk_of_http(pair):
    server, client = pair

    DirectSender(begun(server)).send(b"x" * 17)

    assert client.recv(100) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_a_slow_client_gets_everything_in_order(pair):
    server, client = pair
    pieces = [bytes([65 + i]) * 50_000 for i in range(5)]
    reading = gevent.spawn(received, client)

    sender = DirectSender(begun(server))
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

    sender = DirectSender(begun(server))

    assert not sender.send(b"x" * 1_000_000)

    with pytest.raises(TimeoutError):
        sender.flush()


def test_a_client_that_left_is_an_error_of_the_socket(pair):
    server, client = pair
    client.close()

    with pytest.raises(OSError, match=r"\[Errno"):
        DirectSender(begun(server)).send(b"x")


def test_the_last_piece_ends_the_body(pair):
    server, client = pair
    answer = begun(server)
    answer.headers_sent = True

    DirectSender(answer).send(b"x", is_last=True)
    answer.close()
    server.shutdown(socket.SHUT_WR)

    assert received(client) == b"1\r\nx\r\n0\r\n\r\n"


class Texts:
    """Joins the texts of chunks."""

    failure = None

    def encode(self, chunks: list[Chunk]) -> bytes:
        return "".join(chunk.text for chunk in chunks).encode()

    def close(self) -> None:
        pass


def test_a_stream_takes_a_send_for_each_of_its_pieces_and_none_for_its_head_and_end():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # which keeps what was sent at once apart
    server, client = (gevent.socket.socket(fileno=end.detach()) for end in ends)
    reader, answer = HandDrivenReader(), begun(server)
    stream = EventStream({}, reader, b"first", Texts(), StreamLimits(HttpStats(), -1.0, 5.0))
    stream.begin(answer.start_response)
    with server, client:
        sending = gevent.spawn(stream.send_all, answer.write)
        sent = [client.recv(1000)]
        for chunk in (Chunk(0, "second", 1), Chunk(0, "third", 1, Finish.STOP)):
            reader.give(chunk)
            sent.append(client.recv(1000))
        sending.get(timeout=TIMEOUT)
        answer.close()
        server.shutdown(socket.SHUT_WR)

        assert sent[0].endswith(b"\r\n\r\n5\r\nfirst\r\n")
        assert sent[1:] == [b"6\r\nsecond\r\n", b"5\r\nthird\r\n0\r\n\r\n"]
        assert client.recv(1000) == b""


@pytest.mark.parametrize("start_response", [lambda status, headers: None, [].append])
def test_other_servers_and_middleware_take_the_ordinary_way(start_response):
    assert direct_sender(start_response) is None
