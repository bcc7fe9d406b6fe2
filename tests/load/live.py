"""What the live picture takes of a server with many streams: `python -m tests.load.live [--streams 1000]`.

They are open at once on 256 slots, the most that a model has; the others wait. In turn nobody watches, one does, and
many do. Prints the processor time of the process that serves, in percent of a core, with nobody and what watching
adds: medians of all rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.load.clients import LoadClient, request
from tests.load.process import Server, serving, usage
from tests.load.streams import completion

WATCH = request("/v1/live", b"").replace(b"POST", b"GET", 1)
SLOTS = 256
WINDOW = 3.0  # seconds
SETTLE = 0.5  # seconds before a window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    numbers = [0, *arguments.watchers]
    settings = {"MODEL": "synthetic:?tokens_per_s=1", "SLOTS": str(SLOTS), "CTX": "4096", "STEP_MS": "60000"}
    with serving(settings) as server, streaming(server, arguments.streams) as streams:
        found: dict[int, list[float]] = {n: [] for n in numbers}
        for _ in range(arguments.rounds):
            for n_watchers in numbers:
                found[n_watchers].append(share(server, streams, n_watchers))
    nobody = statistics.median(found[0])
    print(f"{arguments.streams} streams, and nobody watches: {nobody:.2f} % of a core")
    for n_watchers in arguments.watchers:
        added = statistics.median(watched - alone for watched, alone in zip(found[n_watchers], found[0], strict=True))
        print(f"{n_watchers} watchers add {added:.2f} %")


@contextmanager
def streaming(server: Server, n_streams: int) -> Iterator[LoadClient]:
    """Opens streams that go on for as long as this takes."""
    client = LoadClient(server.address)
    for number in range(n_streams):
        client.open(completion(n_tokens=2000))
        if number % 100 == 99:
            client.run_for(0)
    deadline = time.monotonic() + 120
    while client.n_waiting > max(n_streams - SLOTS, 0):
        assert time.monotonic() < deadline, f"{client.n_waiting} streams did not begin"
        client.run_for(0.5)
    yield client


def share(server: Server, streams: LoadClient, n_watchers: int) -> float:
    """Returns the share of a core that the process takes in one window, in percent."""
    watchers = LoadClient(server.address)
    for _ in range(n_watchers):
        watchers.open(WATCH)
    run(streams, watchers, SETTLE)
    before, began = usage(server.worker_pid), time.monotonic()
    run(streams, watchers, WINDOW)
    after, seconds = usage(server.worker_pid), time.monotonic() - began
    for watcher in watchers.streams():
        watchers.drop(watcher)
    run(streams, watchers, SETTLE)
    return 100 * (after.main_cpu - before.main_cpu) / seconds


def run(streams: LoadClient, watchers: LoadClient, seconds: float) -> None:
    """Reads what comes, of both in turn."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        streams.run_for(0.02)
        watchers.run_for(0.02)


if __name__ == "__main__":
    main()
