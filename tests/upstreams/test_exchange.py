"""One HTTP exchange, against a real server."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate

import pytest

from corosrv.errors import Refused
from corosrv.jobs.forward import AnswerHead, ForwardRequest, Headers
from corosrv.upstreams import connections as connections_module
from corosrv.upstreams.connection import PIECE
from corosrv.upstreams.connections import UpstreamConnections
from corosrv.upstreams.exchange import Exchange, ExchangeLimits, refusal_of
from corosrv.upstreams.failures import UpstreamBusy, UpstreamDown, UpstreamLost
from tests.support.receiver import closed_url
from tests.support.scripted_upstream import Handler, closes, fails_with, scripted

QUICK = ExchangeLimits(first_byte=0.2, idle=0.2)
QUICK_ONCE_BEGUN = ExchangeLimits(first_byte=20, idle=0.2)
JSON = (("Content-Type", "application/json"),)


@contextmanager
def connected(url: str, limits: ExchangeLimits | None = None) -> Iterator[Exchange]:
    connections = UpstreamConnections(url, 4)
    exchange = Exchange(connections, limits or ExchangeLimits(5, 5))
    try:
        yield exchange
    finally:
        exchange.close(is_whole=False)
        connections.close()


def begun(exchange: Exchange, body: bytes = b"{}", headers: Headers = JSON, method: str = "POST") -> AnswerHead:
    return exchange.begin("/v1/x?a=1", ForwardRequest(method=method, body=body), headers)


def exchanged(url: str, limits: ExchangeLimits | None = None) -> tuple[AnswerHead, bytes]:
    with connected(url, limits) as exchange:
        return begun(exchange), b"".join(exchange.pieces())


@contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serves each connection by a function, in a thread; it has read nothing when it is called."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def run(sock: socket.socket) -> None:
        with sock:
            sock.settimeout(10)
            with suppress(OSError):  # its client has left, which is what a test wants
                serve(sock)

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=run, args=(sock,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join(10)


def read_request(sock: socket.socket) -> bytes:
    """Reads a request to the end of its body."""
    with sock.makefile("rb") as file:
        lines = list(iter(file.readline, b"\r\n"))
        length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
        file.read(length)
    return b"".join(lines)


def answers(data: bytes, *, then_waits: bool = False) -> Callable[[socket.socket], None]:
    """Serves these bytes after the request, and closes, or waits until its client does."""

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(data)
        while then_waits and sock.recv(65536):
            pass

    return serve


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


def test_an_upstream_that_does_not_answer_in_time_loses_the_call():
    with (
        raw_server(answers(b"", then_waits=True)) as url,
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


# The connection afterwards.


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
