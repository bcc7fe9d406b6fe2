"""The order in which clients that connect in the same instant are served."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from corosrv.web.http.listener import Arrival, Arrivals

HEALTH = b"GET /health HTTP/1.1\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n"


class Clients:
    """Makes connections whose ends a test holds."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def connect(self, sent: bytes = b"") -> tuple[Arrival, socket.socket]:
        ours, theirs = (self._stack.enter_context(end) for end in socket.socketpair())
        theirs.sendall(sent)
        return Arrival(ours, None), theirs


@pytest.fixture
def clients() -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(stack)


def test_they_are_taken_in_order_a_few_at_a_time(clients: Clients) -> None:
    arrivals = Arrivals()
    added = [clients.connect(CHAT)[0] for _ in range(5)]
    for arrival in added:
        arrivals.add(arrival)

    assert [*arrivals.take(2)] == added[:2]
    assert len(arrivals) == 3
    assert [*arrivals.take(9)] == added[2:]
    assert len(arrivals) == 0


@pytest.mark.parametrize(
    "line", [HEALTH, b"GET /v1/health HTTP/1.1", b"HEAD /health?x=1 HTTP/1.1", b"GET /llm/health-check HTTP/1.0"]
)
def test_whoever_asks_for_health_is_taken_first(clients: Clients, line: bytes) -> None:
    arrivals = Arrivals()
    others = [clients.connect(CHAT)[0] for _ in range(5)]
    probe, _ = clients.connect(line)
    for arrival in [*others, probe]:
        arrivals.add(arrival)

    assert [*arrivals.take(1)] == [probe, others[0]]
    assert len(arrivals) == 4


@pytest.mark.parametrize("line", [b"GET /healthy HTTP/1.1", b"POST /health HTTP/1.1", b"GET /?/health HTTP/1.1"])
def test_nobody_else_goes_first(clients: Clients, line: bytes) -> None:
    arrivals = Arrivals()
    chat, other = clients.connect(CHAT)[0], clients.connect(line)[0]
    arrivals.add(chat)
    arrivals.add(other)

    assert [*arrivals.take(1)] == [chat]


def test_a_probe_that_sends_late_is_seen_later(clients: Clients) -> None:
    arrivals = Arrivals()
    others = [clients.connect(CHAT)[0] for _ in range(3)]
    probe, its_end = clients.connect()
    for arrival in [*others, probe]:
        arrivals.add(arrival)
    assert [*arrivals.take(1)] == others[:1]

    its_end.sendall(HEALTH)

    assert [*arrivals.take(1)] == [probe, others[1]]


def test_clients_that_send_nothing_or_left_are_taken_in_order_too(clients: Clients) -> None:
    arrivals = Arrivals()
    silent, left = clients.connect()[0], clients.connect()
    left[1].close()
    arrivals.add(silent)
    arrivals.add(left[0])

    assert [*arrivals.take(0)] == []
    assert [*arrivals.take(9)] == [silent, left[0]]
