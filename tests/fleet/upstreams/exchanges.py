"""Exchanges with servers that behave as a test says, to the byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from corosrv.contracts.jobs.infer import AnswerHead, ForwardRequest, Headers
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits

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
