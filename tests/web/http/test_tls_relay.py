"""Connections under TLS whose requests another process answers: what both ends hear, and when."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import gevent
import gevent.socket
import pytest

from corosrv.web.http.listener import TlsRelay

REQUEST, ANSWER = b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
SECONDS = 5.0


class Relayed:
    """A relay with both who use it: a client, here without TLS, and the process that serves it."""

    def __init__(self, patience: float = SECONDS) -> None:
        self._side, self.client = gevent.socket.socketpair()
        self.relay = TlsRelay(self._side, patience)
        self.process = gevent.socket.socket(fileno=self.relay.far.detach())
        for one in (self.client, self.process):
            one.settimeout(SECONDS)
        self.running = gevent.spawn(self.relay.run)

    def ask(self) -> None:
        self.client.sendall(REQUEST)
        assert self.process.recv(100) == REQUEST

    def answer(self, words: bytes = ANSWER) -> None:
        self.process.sendall(words)
        assert self.client.recv(100) == words

    def has_ended_requests(self, within: float = SECONDS) -> bool:
        with gevent.Timeout(within, False):
            return self.process.recv(100) == b""
        return False

    def close(self) -> None:
        self.running.kill()
        self.relay.close()
        for one in (self._side, self.client, self.process):
            one.close()


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    relayed = Relayed()
    yield relayed
    relayed.close()


def test_both_hear_each_other_until_the_process_closes_its_end(relayed: Relayed):
    for _ in range(2):
        relayed.ask()
        relayed.answer()
    relayed.process.close()

    assert relayed.running.get(timeout=SECONDS) is None


def test_a_client_that_leaves_closes_the_whole_end_of_the_process(relayed: Relayed):
    relayed.ask()

    relayed.client.close()

    assert relayed.process.recv(100) == b""
    with pytest.raises(BrokenPipeError):
        relayed.process.send(b"")


def test_a_hang_up_ends_requests_at_once_where_none_is_open_and_answers_go_on(relayed: Relayed):
    relayed.ask()
    relayed.answer()

    relayed.relay.hang_up()

    assert relayed.has_ended_requests()
    relayed.client.sendall(REQUEST)  # which nobody answers, and which ends nothing
    relayed.answer(b"the rest")


def test_a_hang_up_lets_a_request_come_whole_and_its_answer_begin(relayed: Relayed):
    relayed.ask()

    relayed.relay.hang_up()
    assert not relayed.has_ended_requests(within=0.05)
    relayed.answer(GO_ON)
    assert not relayed.has_ended_requests(within=0.05)
    relayed.ask()
    relayed.answer()

    assert relayed.has_ended_requests()


def test_a_client_that_takes_nothing_ends_the_relay():
    relayed = Relayed(patience=0.1)
    try:
        with contextlib.suppress(OSError):  # the pipe is full, or broken
            while True:
                relayed.process.sendall(b"x" * 100_000)
        with pytest.raises(TimeoutError):
            relayed.running.get(timeout=SECONDS)
    finally:
        relayed.close()
