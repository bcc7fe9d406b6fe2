"""One HTTP exchange, against a real server: what goes out, and what comes back."""

from __future__ import annotations

import socket
import threading

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.infer import ForwardRequest, Headers
from corosrv.fleet.upstreams.connections import PIECE
from tests.fleet.upstreams.exchanges import answers, begun, connected, exchanged, raw_server, read_request
from tests.support.receiver import closed_url
from tests.support.scripted_upstream import Handler, fails_with, scripted

# What goes out.


def test_a_request_goes_on_as_it_was_sent():
    with scripted() as upstream, connected(upstream.url) as exchange:
        head = begun(exchange, b'{"a": 1}', (("Content-Type", "text/x"), ("Authorization", "Bearer k"), ("X-A", "1")))

    assert head.status == 200
    ((path, headers, body),) = upstream.requests
    assert (path, body) == ("/v1/x?a=1", b'{"a": 1}')
    assert headers == {
        "Host": upstream.url.removeprefix("http://"), "Content-Type": "text/x", "Authorization": "Bearer k", "X-A": "1",
        "Content-Length": "8",
    }  # fmt: skip


def test_a_field_that_comes_twice_goes_on_twice():
    seen: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        seen.append(read_request(sock))
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(serve) as url, connected(url) as exchange:
        begun(exchange, headers=(("X-A", "1"), ("X-A", "2")))

    assert b"X-A: 1\r\nX-A: 2\r\n" in seen[0]


def test_fields_of_one_hop_do_not_go_out():
    hop = (("Connection", "close"), ("Transfer-Encoding", "chunked"), ("Content-Length", "9"), ("Host", "other"))
    with scripted() as upstream, connected(upstream.url) as exchange:
        begun(exchange, b"{}", hop)

    ((_, headers, body),) = upstream.requests
    assert body == b"{}"
    assert headers == {"Host": upstream.url.removeprefix("http://"), "Content-Length": "2"}


def test_a_get_has_no_body_and_no_length():
    seen: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        seen.append(read_request(sock))
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(serve) as url, connected(url) as exchange:
        begun(exchange, b"", (), "GET")

    assert seen[0].startswith(b"GET /v1/x?a=1 HTTP/1.1\r\n")
    assert b"content-length" not in seen[0].lower()


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/a b", ()), ("/a\r\nX: y", ()), ("/\u20ac", ()), ("/", (("X", "a\r\nY: z"),)), ("/", (("X Y", "a"),))],
)
def test_what_cannot_be_sent_is_refused_and_is_no_fault_of_the_upstream(path: str, headers: Headers):
    with scripted() as upstream, connected(upstream.url) as exchange:
        with pytest.raises(Refused):
            exchange.begin(path, ForwardRequest(body=b"{}"), headers)

        assert upstream.requests == []


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, closed_url())
    with scripted() as upstream:
        head, _ = exchanged(upstream.url)

    assert head.status == 200


# What comes back.


def test_fields_of_one_hop_and_cookies_do_not_come_back():
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Own\r\nX-Own: 1\r\n"
        b"Keep-Alive: timeout=5\r\n"
        b"Set-Cookie: a=b\r\nServer: some\r\nDate: today\r\nUpgrade: h2\r\nTrailer: x\r\nContent-Type: text/x\r\n"
        b"X-Twice: 1\r\nX-Twice: 2\r\n\r\nok"
    )
    with raw_server(answers(answer)) as url:
        head, body = exchanged(url)

    assert head.headers == (("Content-Type", "text/x"), ("X-Twice", "1"), ("X-Twice", "2"))
    assert body == b"ok"


def test_no_field_that_comes_back_can_break_out_of_its_line():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Folded: a\r\n  b\r\nX-Bare: a\x0bb\r\nX \x7f: c\r\n\r\n"
    with raw_server(answers(answer)) as url:
        head, _ = exchanged(url)

    assert all(not set(name + value) & set("\r\n") for name, value in head.headers)
    assert ("X-Folded", "a b") in head.headers
    assert all(name.isascii() and " " not in name for name, _ in head.headers)


def test_pieces_come_one_by_one_while_the_upstream_still_writes():
    go_on = threading.Event()

    def stream(handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(b"data: 1\n\n")
        assert go_on.wait(10)
        handler.chunk(b"data: 2\n\n")
        handler.end_stream()

    with scripted(stream) as upstream, connected(upstream.url) as exchange:
        begun(exchange)
        pieces = exchange.pieces()
        first = next(pieces)
        go_on.set()
        rest = list(pieces)

    assert (first, rest) == (b"data: 1\n\n", [b"data: 2\n\n"])


def test_a_long_body_is_handed_over_in_turns():
    n_bytes = 8 << 20
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {n_bytes}\r\n\r\n".encode() + b"x" * n_bytes
    turns: list[int] = []

    def count(piece: bytes) -> bool:
        turns[-1] += len(piece)
        return True

    with raw_server(answers(answer)) as url, connected(url) as exchange:
        begun(exchange)
        is_whole = False
        while not is_whole:
            turns.append(0)
            is_whole = exchange.pump(count)

    assert sum(turns) == n_bytes
    assert max(turns) <= 2 * PIECE


def test_a_sink_that_wants_no_more_gets_the_rest_later():
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n" % PIECE + b"x" * PIECE + b"\r\n" for _ in range(4)
    )
    pieces: list[bytes] = []

    with raw_server(answers(answer + b"0\r\n\r\n")) as url, connected(url) as exchange:
        begun(exchange)
        assert not exchange.pump(lambda piece: bool(pieces.append(piece)))
        assert len(pieces) == 1
        while not exchange.pump(lambda piece: bool(pieces.append(piece))):
            pass

    assert b"".join(pieces) == b"x" * 4 * PIECE


def test_what_a_sink_raises_comes_out_of_the_pump():
    def fail(piece: bytes) -> bool:
        raise KeyError("a bug")

    with scripted() as upstream, connected(upstream.url) as exchange:
        begun(exchange)
        with pytest.raises(KeyError, match="a bug"):
            exchange.pump(fail)


@pytest.mark.parametrize("status", [200, 201, 400, 401, 404, 413, 422, 500, 501])
def test_these_statuses_are_answers(status: int):
    with scripted(fails_with(status)) as upstream:
        head, body = exchanged(upstream.url)

    assert head.status == status
    assert b"as the test says" in body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_answer_may_be_empty(answer: bytes):
    with raw_server(answers(answer)) as url:
        head, body = exchanged(url)

    assert head.status in (200, 204)
    assert body == b""


def test_an_answer_without_a_length_ends_with_the_connection():
    with raw_server(answers(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000)) as url:
        assert exchanged(url)[1] == b"x" * 100_000


def test_an_answer_that_comes_before_the_body_was_read_is_an_answer():
    def refuse(sock: socket.socket) -> None:
        sock.recv(1024)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 20):
            pass

    with raw_server(refuse) as url, connected(url) as exchange:
        head = begun(exchange, b"x" * (8 << 20))

    assert head.status == 413
