"""A server that answers by hand: what no real server would be so kind as to do on demand."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator

from tests.client.bench.streams import whole

TIMEOUT = 15.0  # seconds


class HandMade(socketserver.ThreadingTCPServer):
    """Lists a model, and answers every other request with `answer`; then holds the connection where `is_held`."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = whole(tokens=4)
        self.models = b'{"data": [{"id": "hand-made"}]}'
        self.is_held = False
        self.asked = threading.Event()  # somebody has sent a completion
        self.bodies: list[dict[str, object]] = []
        self.heads: list[bytes] = []
        self.released = threading.Event()
        self.n_open = self.n_open_most = 0  # of completions
        self.lock = threading.Lock()
        self.tls = tls

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://localhost:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    server: HandMade
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(TIMEOUT)
        with contextlib.suppress(OSError):
            connected = self.server.tls.wrap_socket(self.request, server_side=True) if self.server.tls else self.request
            with connected:
                self._answer(connected)

    def _answer(self, connected: socket.socket) -> None:
        head, body = self._read(connected)
        self.server.heads.append(head)
        if head.startswith(b"GET"):
            models = self.server.models
            connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(models), models))
            return
        with self.server.lock:
            self.server.bodies.append(json.loads(body))
            self.server.n_open += 1
            self.server.n_open_most = max(self.server.n_open, self.server.n_open_most)
        connected.sendall(self.server.answer[:-1])
        self.server.asked.set()
        if self.server.is_held:
            self.server.released.wait(TIMEOUT)
        with self.server.lock:
            self.server.n_open -= 1
        connected.sendall(self.server.answer[-1:])  # from here on the client may send its next

    def _read(self, connected: socket.socket) -> tuple[bytes, bytes]:
        seen = b""
        while b"\r\n\r\n" not in seen:
            seen += connected.recv(65_536)
        head, _, body = seen.partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        while len(body) < sum(lengths):
            body += connected.recv(65_536)
        return head, body


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[HandMade]:
    with HandMade(tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join(TIMEOUT)
