"""HTTP exchanges that fail, and what they say of the call: lost, refused, or never run."""

from __future__ import annotations

import socket
import threading
from email.utils import formatdate

import pytest

from corosrv.contracts.jobs.infer import AnswerHead
from corosrv.fleet.upstreams import connections as connections_module
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits, refusal_of
from corosrv.fleet.upstreams.failures import UpstreamBusy, UpstreamDown, UpstreamLost
from tests.fleet.upstreams.exchanges import QUICK, QUICK_ONCE_BEGUN, answers, begun, connected, raw_server
from tests.support.receiver import closed_url
from tests.support.scripted_upstream import closes, fails_with, scripted

# What fails.


def test_an_upstream_that_refuses_the_connection_is_down():
    with connected(closed_url()) as exchange, pytest.raises(UpstreamDown, match="Connection refused"):
        begun(exchange)


def test_a_name_that_resolves_to_nothing_is_down():
    with connected("http://no-such-host.invalid") as exchange, pytest.raises(UpstreamDown, match="cannot be reached"):
        begun(exchange)


def test_a_name_is_looked_up_for_each_new_connection(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    with scripted() as a, scripted() as b:
        addresses = iter([upstream.url.rpartition(":")[2] for upstream in (a, b)])

        def look_up(host: str, *rest: object, **options: object) -> list[object]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(next(addresses))))]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        connections = UpstreamConnections("http://moves.test:80", 4)
        for _ in range(2):
            exchange = Exchange(connections, ExchangeLimits(5, 5))
            begun(exchange)
            exchange.close(is_whole=False)
        connections.close()

        assert asked == ["moves.test"] * 2
        assert (len(a.requests), len(b.requests)) == (1, 1)


def test_an_https_upstream_that_does_not_speak_tls_is_down():
    with (
        raw_server(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url,
        connected(url.replace("http:", "https:")) as exchange,
        pytest.raises(UpstreamDown),
    ):
        begun(exchange)


def test_an_upstream_that_does_not_take_the_connection_is_down(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections_module, "CONNECT_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        queued = [socket.socket() for _ in range(4)]  # fill the line of those that wait to be accepted
        for sock in queued:
            sock.setblocking(False)
            sock.connect_ex(address)
        with (
            connected(f"http://127.0.0.1:{address[1]}") as exchange,
            pytest.raises(UpstreamDown, match=r"within 0.2 s"),
        ):
            begun(exchange)
        for sock in queued:
            sock.close()


def test_a_connection_that_closes_without_an_answer_loses_the_call():
    with scripted(closes) as upstream, connected(upstream.url) as exchange:
        with pytest.raises(UpstreamLost, match="broke off before it answered"):
            begun(exchange)

        assert len(upstream.requests) == 1


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"])
def test_an_upstream_that_does_not_answer_in_time_loses_the_call(beginning: bytes):
    with (
        raw_server(answers(beginning, then_waits=True)) as url,
        connected(url, QUICK) as exchange,
        pytest.raises(UpstreamLost, match=r"did not answer within 0.2 s"),
    ):
        begun(exchange)


def test_an_upstream_that_does_not_read_loses_the_call():
    may_end = threading.Event()
    with raw_server(lambda sock: bool(may_end.wait(10))) as url, connected(url, QUICK) as exchange:
        with pytest.raises(UpstreamLost):
            begun(exchange, b"x" * (64 << 20))
        may_end.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\nxyz\r\n",
    ],
)
def test_an_answer_that_ends_early_loses_the_call(answer: bytes):
    with raw_server(answers(answer)) as url, connected(url) as exchange:
        begun(exchange)
        with pytest.raises(UpstreamLost):
            list(exchange.pieces())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhel",
    ],
)
def test_an_answer_that_stalls_loses_the_call(answer: bytes):
    with raw_server(answers(answer, then_waits=True)) as url, connected(url, QUICK_ONCE_BEGUN) as exchange:
        begun(exchange)
        pieces = exchange.pieces()

        assert next(pieces) == b"hel"
        with pytest.raises(UpstreamLost, match=r"sent nothing for 0.2 s"):
            next(pieces)


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"\x00\xff" * 1000,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 " + b"2" * 100_000,
    ],
)
def test_garbage_loses_the_call(answer: bytes):
    with raw_server(answers(answer)) as url, connected(url) as exchange, pytest.raises(UpstreamLost):
        begun(exchange)


# What says that the call did not run.


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, UpstreamBusy), (503, UpstreamDown), (502, UpstreamLost), (504, UpstreamLost), (307, UpstreamLost)],
)
def test_these_statuses_are_errors(status: int, error: type[Exception]):
    with scripted(fails_with(status)) as upstream, connected(upstream.url) as exchange, pytest.raises(error):
        begun(exchange)


def test_a_redirect_is_not_followed():
    with scripted() as other, scripted(fails_with(307, Location=other.url)) as upstream:
        with connected(upstream.url) as exchange, pytest.raises(UpstreamLost, match="a redirect"):
            begun(exchange)

        assert other.requests == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("0", 1), ("", 1), ("soon", 1), ("-5", 1), ("99999", 300), (formatdate(1060.0, usegmt=True), 60)],
)
def test_a_busy_upstream_is_left_alone_for_as_long_as_it_says(text: str, seconds: float):
    refusal = refusal_of(AnswerHead(status=429, headers=(("retry-after", text),)), now=1000.0)

    assert isinstance(refusal, UpstreamBusy)
    assert refusal.seconds == seconds
    assert refusal.retry_after == seconds
