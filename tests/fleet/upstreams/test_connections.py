"""Connections to an upstream after an exchange: used again, kept for a while, or closed."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest

from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits
from tests.fleet.upstreams.exchanges import answers, begun, raw_server, read_request
from tests.support.scripted_upstream import Handler, scripted


def test_a_connection_is_used_again_after_a_whole_answer():
    ports: list[int] = []

    def note_port(handler: Handler) -> None:
        ports.append(handler.client_address[1])
        handler.answer(200, {})

    with scripted(note_port) as upstream:
        connections = UpstreamConnections(upstream.url, 4)
        for _ in range(3):
            exchange = Exchange(connections, ExchangeLimits(5, 5))
            begun(exchange)
            list(exchange.pieces())
            exchange.close(is_whole=True)
        connections.close()

    assert len(ports) == 3
    assert len(set(ports)) == 1


def test_a_connection_is_closed_after_half_an_answer():
    closed = threading.Event()

    def stream(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        if not sock.recv(1):
            closed.set()

    with raw_server(stream) as url:
        connections = UpstreamConnections(url, 4)
        exchange = Exchange(connections, ExchangeLimits(5, 5))
        begun(exchange)
        next(exchange.pieces())
        exchange.close(is_whole=False)

        assert closed.wait(5)
        assert connections.n_idle == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_a_connection_that_must_not_be_used_again_is_closed(answer: bytes):
    with raw_server(answers(answer, then_waits=True)) as url:
        connections = UpstreamConnections(url, 4)
        exchange = Exchange(connections, ExchangeLimits(5, 5))
        begun(exchange)
        body = b"".join(exchange.pieces())
        exchange.close(is_whole=True)

        assert body == b"ok"
        assert connections.n_idle == 0


def test_an_idle_connection_that_the_upstream_closed_is_replaced():
    n_served = 0

    def serve(sock: socket.socket) -> None:
        nonlocal n_served
        read_request(sock)
        n_served += 1
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(serve) as url:
        connections = UpstreamConnections(url, 4)
        for _ in range(3):
            exchange = Exchange(connections, ExchangeLimits(5, 5))
            begun(exchange)
            exchange.close(is_whole=True)
            idle = connections._idle[-1][0]._socket
            assert select.select([idle], [], [], 5)[0]  # the end has arrived
        connections.close()

    assert n_served == 3


def test_a_connection_that_was_idle_for_long_is_closed():
    with scripted() as upstream:
        connections = UpstreamConnections(upstream.url, 4)
        connections.give_back(connections.take())

        connections.close_idle(3.0)
        assert connections.n_idle == 1
        connections.close_idle(0.0)

        assert connections.n_idle == 0


def test_no_more_connections_are_kept_than_may_be():
    with scripted() as upstream:
        connections = UpstreamConnections(upstream.url, 2)
        taken = [connections.take() for _ in range(4)]
        for connection in taken:
            connections.give_back(connection)

        assert connections.n_idle == 2
        connections.close()
        assert connections.n_idle == 0
        assert all(connection.is_closed for connection in taken)


def test_a_machine_that_vanishes_is_noticed_in_half_a_minute():
    with scripted() as upstream:
        connection = UpstreamConnections(upstream.url, 4).take()
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            is_kept = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            timeout_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, interval, count = (sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        connection.close()

    assert (is_kept, timeout_ms) == (1, 30_000)
    assert idle + interval * count <= 30
