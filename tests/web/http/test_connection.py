"""Connections of clients when the server stops: which of them it hangs up on."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from gevent import socket
from gunicorn.config import Config

from corosrv.web.http import connection as connections
from corosrv.web.http.connection import ClientLimits, Connection
from tests.support.waiting import wait_until

REQUEST = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


class Client:
    """A client's end of a connection, and the requests that the server has read of it."""

    def __init__(self) -> None:
        self.end, served = socket.socketpair()
        self.end.settimeout(10)
        self.connection = Connection(Config(), served, ("127.0.0.1", 1), ClientLimits())
        self.n_requests = 0
        self._serving = gevent.spawn(self._serve)
        wait_until(lambda: self.connection.is_idle)

    def _serve(self) -> None:
        try:
            for _ in self.connection.requests():
                self.n_requests += 1
        finally:
            self.connection.close(0)

    def ask(self) -> None:
        before = self.n_requests
        self.end.sendall(REQUEST)
        wait_until(lambda: self.n_requests > before and self.connection.is_idle)

    def close(self) -> None:
        self._serving.kill()
        self.end.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(connections, "_FIRST_PATIENCE", 60.0)
    client = Client()
    yield client
    client.close()


def test_one_that_has_just_been_made_may_send_its_first_request(client: Client) -> None:
    client.connection.hang_up()

    client.ask()


def test_one_that_has_been_answered_is_ended(client: Client) -> None:
    client.ask()

    client.connection.hang_up()

    assert client.end.recv(1) == b""


def test_one_that_has_sent_nothing_for_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_FIRST_PATIENCE", 0.0)
    client = Client()

    client.connection.hang_up()

    assert client.end.recv(1) == b""
    client.close()
