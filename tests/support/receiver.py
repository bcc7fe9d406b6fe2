"""A receiver of webhooks: a real HTTP server in a thread, which answers as a test says and keeps what it was sent."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMEOUT = 10.0


@dataclass
class Got:
    """One request, and when it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes = b""  # the body as it came
    at: float = field(default_factory=time.monotonic)


class Receiver:
    """Answers 200 to all but the first requests, whose answers `say` gives. Any thread."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.n_answered = 0
        self._says: deque[tuple[int, dict[str, str]]] = deque()
        self._news = threading.Condition()
        self._held = threading.Event()
        self._held.set()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def say(self, status: int, **headers: str) -> None:
        """The next request that has no answer yet gets this one; `Retry_After` is Retry-After."""
        self._says.append((status, {name.replace("_", "-"): value for name, value in headers.items()}))

    def hold(self) -> None:
        """Answers nobody from now on."""
        self._held.clear()

    def let_go(self) -> None:
        self._held.set()

    @property
    def statuses(self) -> list[str]:
        """Of the predictions that were sent."""
        return [got.body["status"] for got in self.got]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver._take(Got(self.command, self.path, headers, json.loads(body) if body else None, body))
                receiver._held.wait(TIMEOUT)
                status, fields = receiver._says.popleft() if receiver._says else (200, {})
                self.send_response(status)
                for name, value in {"Content-Length": "0", **fields}.items():
                    self.send_header(name, value)
                self.end_headers()
                receiver.n_answered += 1

            do_GET = do_PUT = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _take(self, got: Got) -> None:
        with self._news:
            self.got.append(got)
            self._news.notify_all()

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._thread.join(TIMEOUT)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that did not wait for its answer is what tests are about."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


def closed_url() -> str:
    """An address where nobody listens."""
    with receiving() as receiver:
        return receiver.url
