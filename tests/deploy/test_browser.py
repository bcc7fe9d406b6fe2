"""deploy/browser: what a browser reads is whole, however often its connection breaks."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.serve.server import REPOSITORY, Server, Servers, servers
from tests.support.browser import Page, browser

MODULE = REPOSITORY / "deploy" / "browser" / "stream.mjs"
BODY = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "temperature": 0, "seed": 1}
READ = """(async () => {
  const { stream } = await import("/stream.mjs");
  const [texts, controller] = [[], new AbortController()];
  try {
    for await (const chunk of stream("/v1/chat/completions", BODY, { signal: controller.signal, tries: TRIES })) {
      texts.push(chunk.choices[0]?.delta.content ?? "");
      if (texts.length === ENOUGH) controller.abort();
    }
    return { text: texts.join("") };
  } catch (error) {
    return { text: texts.join(""), name: error.name, message: error.message, status: error.status };
  }
})()"""
TIMEOUT = 30.0  # seconds
BEFORE_END = 0.3  # seconds between the last byte of a connection and its end


class CuttingProxy(socketserver.ThreadingTCPServer):
    """Serves the module, and passes other requests on; breaks answers of POST off after so many bytes, one by one."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target = port
        self.cuts: list[int] = []
        self.heads: list[str] = []


class _Passing(socketserver.BaseRequestHandler):
    server: CuttingProxy
    request: socket.socket

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.settimeout(TIMEOUT)
            data = b""
            while b"\r\n\r\n" not in data:
                data += self.request.recv(1 << 16)
            head = data.partition(b"\r\n\r\n")[0].decode()
            if head.startswith("GET /stream.mjs"):
                self._send(MODULE.read_bytes(), "text/javascript")
            elif head.startswith("GET"):
                self._send(b"<!doctype html>", "text/html")
            else:
                self.server.heads.append(head.lower())
                self._pass_on(data, self.server.cuts.pop(0) if self.server.cuts else 1 << 30)

    def _send(self, body: bytes, kind: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.request.sendall(head.encode() + body)

    def _pass_on(self, data: bytes, n_bytes: int) -> None:
        with socket.create_connection(("127.0.0.1", self.server.target), TIMEOUT) as theirs:
            passing = threading.Thread(target=self._pass_rest, args=(theirs,), daemon=True)
            passing.start()
            theirs.sendall(data)
            while n_bytes > 0 and (read := theirs.recv(min(n_bytes, 1 << 16))):
                self.request.sendall(read)
                n_bytes -= len(read)
            # A browser drops what its page has not read when a connection ends too early; a reset drops even more.
            time.sleep(BEFORE_END)
            self.request.shutdown(socket.SHUT_WR)
            passing.join(TIMEOUT)

    def _pass_rest(self, theirs: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while read := self.request.recv(1 << 16):
                theirs.sendall(read)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("cache")) as started:
        yield started


@pytest.fixture(scope="module")
def server(started: Servers) -> Server:
    return started.start("corosrv", "serve", "--port", "0", model="synthetic:?tokens_per_s=100")


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    with CuttingProxy(server.port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


def read(
    page: Page, proxy: CuttingProxy, body: dict[str, object] = BODY, enough: int = -1, tries: int = 8
) -> dict[str, object]:
    page.open(f"http://127.0.0.1:{proxy.server_address[1]}/")
    page.wait("document.readyState === 'complete' && location.port !== ''")
    seen: dict[str, object] = page.run(
        READ.replace("BODY", json.dumps(body)).replace("ENOUGH", str(enough)).replace("TRIES", str(tries))
    )
    return seen


def whole(server: Server) -> str:
    with server.connect() as connection:
        return str(connection.post(BODY).json["choices"][0]["message"]["content"])


def test_a_stream_that_breaks_off_again_and_again_is_read_whole(
    page: Page, proxy: CuttingProxy, server: Server
) -> None:
    # Within the head, and then behind it, between events and within them.
    proxy.cuts = [40, *(1500 + 77 * i for i in range(6))]
    seen = read(page, proxy)

    assert seen == {"text": whole(server)}
    assert not proxy.cuts
    assert len({line for head in proxy.heads for line in head.split("\r\n") if "idempotency-key" in line}) == 1
    assert sum("last-event-id" in head for head in proxy.heads) >= 4


def test_what_the_server_refuses_is_thrown_at_once(page: Page, proxy: CuttingProxy) -> None:
    seen = read(page, proxy, BODY | {"max_tokens": -5})

    assert (seen["text"], seen["status"]) == ("", 400)
    assert "max_tokens" in str(seen["message"])
    assert len(proxy.heads) == 1


def test_a_connection_that_always_breaks_is_given_up(page: Page, proxy: CuttingProxy) -> None:
    proxy.cuts = [30] * 10
    seen = read(page, proxy, tries=3)

    assert seen["text"] == ""
    assert seen["name"] in ("TypeError", "Error")  # as fetch names it, or without any event
    assert len(proxy.heads) == 3


def test_whoever_has_enough_reads_no_more(page: Page, proxy: CuttingProxy, server: Server) -> None:
    seen = read(page, proxy, enough=4)

    assert seen["name"] == "AbortError"
    assert whole(server).startswith(str(seen["text"]))
    assert len(proxy.heads) == 1
