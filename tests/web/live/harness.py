"""Serves the live picture alone, under a policy as strict as a page's, with frames that a test writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[3] / "corosrv" / "web" / "static" / "page" / "live.mjs"
PAGE = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>live</title><link rel="icon" href="data:,">
<main id="picture"></main><script type="module" src="harness.mjs"></script></html>"""
SCRIPT = b"""import { mount } from "./live.mjs";
const headers = { Authorization: `Bearer ${location.hash.slice(1) || "right"}` };
window.end = mount(document.querySelector("#picture"), { base: "", headers });
"""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
FILES = {
    "/": ("text/html", PAGE),
    "/harness.mjs": ("text/javascript", SCRIPT),
    "/live.mjs": ("text/javascript", PICTURE.read_bytes()),
}


class Harness(ThreadingHTTPServer):
    """Sends `frame` four times a second to whoever has the right key, until it is told to hang up."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HarnessRequest)
        self.frame: dict[str, Any] = {}
        self.n_streams = 0  # that were begun
        self.n_open = 0
        self.hangs_up = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class HarnessRequest(BaseHTTPRequestHandler):
    server: Harness

    def log_message(self, *arguments: Any) -> None:
        """Keeps quiet."""

    def do_GET(self) -> None:
        if self.path == "/v1/live":
            self._live()
        elif self.path in FILES:
            kind, body = FILES[self.path]
            self._begin(200, kind)
            self.wfile.write(body)
        else:
            self._begin(404, "text/plain")

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Connection", "close")
        self.end_headers()

    def _live(self) -> None:
        if self.headers["Authorization"] != "Bearer right":
            self._begin(401, "application/json")
            self.wfile.write(json.dumps({"error": {"message": "a key is needed"}}).encode())
            return
        self._begin(200, "text/event-stream")
        self.server.n_streams += 1
        self.server.n_open += 1
        try:
            with suppress(OSError):
                while not self.server.hangs_up.wait(0.25):
                    frame = json.dumps(self.server.frame | {"time": time.time()})
                    self.wfile.write(f"data: {frame}\n\n".encode())
        finally:
            self.server.n_open -= 1


@contextmanager
def harness() -> Iterator[Harness]:
    with Harness() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.hangs_up.set()
            server.shutdown()
            thread.join(5)
