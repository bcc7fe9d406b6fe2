"""A web server for files: each path answers as a test says, and what is put is remembered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Asks the server's table what to answer."""

    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.agents.append(self.headers.get("User-Agent", ""))
        self.server.answer(self.path, status(404))(self)
        self.close_connection = True  # also where a test answers nothing

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.uploads.append((self.path, self.headers["Content-Type"], content))
        self.server.answer(self.path, status(200))(self)

    def reply(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


class FileServer(ThreadingHTTPServer):
    """`answers` by path, or for "*"; `uploads`: path, type and content of what was put."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.uploads: list[tuple[str, str, bytes]] = []
        self.agents: list[str] = []

    def answer(self, path: str, otherwise: Answer) -> Answer:
        return self.answers.get(path.partition("?")[0], self.answers.get("*", otherwise))

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are the tests' doing."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def content(of: bytes) -> Answer:
    return lambda handler: handler.reply(200, of)


def status(code: int, **headers: str) -> Answer:
    return lambda handler: handler.reply(code, **headers)


@contextlib.contextmanager
def serving() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
