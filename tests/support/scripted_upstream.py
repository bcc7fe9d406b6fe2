"""A server that answers as a test says: a real HTTP server in a thread, which stands for an upstream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]
DONE = b"data: [DONE]\n\n"  # the last event of a stream, with which its call is over


class Handler(BaseHTTPRequestHandler):
    """One request. Behaviours write its answer."""

    protocol_version = "HTTP/1.1"
    body = b""
    is_counted = False
    server: _Server

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = self.server.upstream
        with upstream.lock:
            upstream.requests.append((self.path, dict(self.headers.items()), self.body))
            self.is_counted = True
            upstream.n_running += 1
            upstream.most_running = max(upstream.most_running, upstream.n_running)
        try:
            upstream.behaviour(self)
        except OSError:
            upstream.n_broken += 1
        finally:
            self.end_call()

    def end_call(self) -> None:
        """Counts the call as over, before whoever waits for its last bytes may send another. Twice is harmless."""
        upstream = self.server.upstream
        with upstream.lock:
            upstream.n_running -= self.is_counted
            self.is_counted = False

    def do_GET(self) -> None:
        upstream = self.server.upstream
        if upstream.is_silent:
            self.connection.settimeout(20)
            self.connection.recv(1)
            self.close_connection = True
        elif self.path == "/health":
            self.answer(upstream.health, {})
        elif self.path == "/v1/models":
            self.answer(
                upstream.listing,
                {"object": "list", "data": [{"id": name, "owned_by": upstream.owner} for name in upstream.models]},
            )
        elif self.path in upstream.descriptions:
            self.answer(200, upstream.descriptions[self.path])
        else:
            self.answer(404, {})

    def answer(self, status: int, value: Any, **headers: str) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_call()
        self.end_headers()
        self.wfile.write(body)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        if data == DONE:
            self.end_call()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end_stream(self) -> None:
        self.end_call()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


class ScriptedUpstream:
    """Answers each POST by its behaviour, which a test may change at any time."""

    def __init__(self, behaviour: Behaviour | None = None, models: tuple[str, ...] = ("m",)) -> None:
        self.behaviour: Behaviour = behaviour or echo
        self.models = models
        self.owner = "test"  # of its models, as it lists them
        self.health = 200
        self.descriptions: dict[str, Any] = {}  # that it answers by their paths
        self.is_silent = False  # it answers no GET, as a machine that is gone
        self.listing = 200  # the status of the list of its models
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.n_running = 0
        self.most_running = 0
        self.n_broken = 0  # answers that nobody took
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.upstream = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop_listening(self) -> None:
        """Refuses connections from now on; those that are there go on. Twice is harmless."""
        self._server.shutdown()
        self._server.server_close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True
    upstream: ScriptedUpstream

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle is what tests are about."""


def echo(handler: Handler) -> None:
    """Answers with what was sent."""
    handler.answer(200, {"path": handler.path, "body": handler.body.decode()})


def fails_with(status: int, **headers: str) -> Behaviour:
    return lambda handler: handler.answer(status, {"error": {"message": "as the test says"}}, **headers)


def crashes(handler: Handler) -> None:
    """Answers 500 as a server does that does not know what has happened to it."""
    handler.send_response(500)
    handler.send_header("Content-Type", "text/plain")
    handler.send_header("Content-Length", "5")
    handler.end_headers()
    handler.wfile.write(b"Oops\n")


def closes(handler: Handler) -> None:
    """Ends the connection without an answer."""
    handler.close_connection = True
    handler.connection.close()


@contextmanager
def scripted(behaviour: Behaviour | None = None, models: tuple[str, ...] = ("m",)) -> Iterator[ScriptedUpstream]:
    upstream = ScriptedUpstream(behaviour, models)
    try:
        yield upstream
    finally:
        upstream.close()
