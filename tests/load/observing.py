"""What logs and traces cost: `python -m tests.load.observing [--seconds 2] [--rounds 8] [--versus FOLDER]`.

Servers of short chats are alive at once and loaded in turn: one with everything off, one with each form of the access
log, one that sends spans to a collector. Prints the processor time that a chat takes of the thread that serves HTTP,
and its ratio to that of the first server, the median of all rounds. --versus: a server of another checkout's
`corosrv` runs beside them, with everything off.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.load.chats import CHAT, SETTINGS, throughput
from tests.load.process import serving

OFF = "off"
SWITCHES = {
    OFF: {},
    "access log, text": {"ACCESS_LOG": "text"},
    "access log, JSON": {"ACCESS_LOG": "json"},
    "traces": {"TRACES": "1"},
}
LONG_AGO = "the other checkout, off"


class _Sink(BaseHTTPRequestHandler):
    """A collector that takes everything and looks at nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[str]:
    """A collector's URL, until the block is left."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def measure(seconds: float, rounds: int, versus: str | None) -> dict[str, list[float]]:
    """Returns the milliseconds that a chat took in each round, by what was on."""
    costs: dict[str, list[float]] = {}
    with ExitStack() as stack:
        url = stack.enter_context(collecting())
        also = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "NO_PROXY": "127.0.0.1"}
        servers = {
            name: stack.enter_context(serving(SETTINGS | switches, environ=also)) for name, switches in SWITCHES.items()
        }
        if versus is not None:
            servers[LONG_AGO] = stack.enter_context(serving(SETTINGS, folder=versus))
        for server in servers.values():
            throughput(server, CHAT, 1.0)  # warm
        for number in range(rounds):
            names = list(servers) if number % 2 == 0 else list(servers)[::-1]
            for name in names:
                costs.setdefault(name, []).append(throughput(servers[name], CHAT, seconds).cost)
            print(", ".join(f"{name}: {costs[name][-1]:.3f} ms" for name in servers), flush=True)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--versus", metavar="FOLDER")
    options = parser.parse_args()
    costs = measure(options.seconds, options.rounds, options.versus)
    for name, those in costs.items():
        ratio = statistics.median(one / off for one, off in zip(those, costs[OFF], strict=True))
        print(f"{name}: {statistics.median(those):.3f} ms of the front's thread for a chat, {ratio:.3f} times off")


if __name__ == "__main__":
    main()
