"""Noticing that a client went away: closed, reset, and with a request still in its pipe. Collecting its answer."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import gevent
import gevent.event
import gevent.socket
import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import ClientGone, CorosrvError, JobFailed, Refused
from corosrv.contracts.jobs import Candidate, Chunk, Finish, TokenInfo
from corosrv.dialects.generation.exchange import failure_of
from corosrv.web.http.client import ClientWatch, collect
from tests.support.engines import TIMEOUT
from tests.support.readers import HandDrivenReader

END = Chunk(0, "", 1, Finish.STOP)

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


def test_a_relayed_client_that_sends_no_more_is_there_until_its_end_is_closed():
    server, other = gevent.socket.socketpair()
    noticed = gevent.event.Event()
    with server, other:
        watch = ClientWatch({"gunicorn.socket": server}, noticed.set)
        other.shutdown(socket.SHUT_WR)
        gevent.sleep(1.2)  # longer than between two looks
        assert not noticed.is_set()

        other.close()

        assert noticed.wait(5)
        assert watch.is_gone


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


@pytest.fixture
def reader() -> HandDrivenReader:
    return HandDrivenReader()


def request(**environ: Any) -> Request:
    return Request(EnvironBuilder().get_environ() | environ)


def test_a_collected_answer_has_every_chunk_and_closes_the_reader(reader):
    reader.give(Chunk(0, "a", 1))
    reader.give(Chunk(0, "b", 1), END)

    chunks = collect(request(), reader)

    assert "".join(chunk.text for chunk in chunks) == "ab"
    assert reader.n_closed == 1


def test_a_collected_answer_ends_when_its_client_leaves(reader, pair):
    server, client = pair
    collecting = gevent.spawn(collect, request(**{"gunicorn.socket": server}), reader)
    gevent.idle()

    client.close()

    with pytest.raises(ClientGone):
        collecting.get(timeout=TIMEOUT)
    assert reader.is_cancelled
    assert reader.n_closed == 1


def test_a_failed_read_closes_the_reader(reader):
    reader.fail(CorosrvError("it broke"))

    with pytest.raises(CorosrvError, match="it broke"):
        collect(request(), reader)

    assert reader.n_closed == 1


def test_a_failed_task_ends_a_collected_answer_at_once():
    reader = HandDrivenReader(n_tasks=2)
    reader.give(Chunk(0, "it broke", 0, Finish.ERROR))

    with pytest.raises(JobFailed, match="it broke"):
        collect(request(), reader, failure_of)

    assert reader.n_closed == 1


def test_an_answer_that_lists_more_than_there_is_memory_for_ends(reader):
    likely = TokenInfo(1, b"a", -0.5, (Candidate(1, b"a", -0.5),) * 999)
    for _ in range(11):
        reader.give(Chunk(0, "a" * 100, 100, tokens=(likely,) * 100))

    with pytest.raises(Refused, match="over 1000000 likely tokens"):
        collect(request(), reader)
    assert reader.n_closed == 1
