"""Thousands of streams that one front forwards at once: `python -m tests.load.upstream_streams [--streams 100 5000]`.

They come from one corosrv with the synthetic model. Prints whether all completed, the front's threads, its memory for
each stream, its processor time for each event, and how /health answers meanwhile.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass

from tests.load.clients import LoadClient, Outcome, request
from tests.load.health import HealthProbe
from tests.load.process import Usage, usage
from tests.load.upstream_servers import (
    MODEL,
    LoadedFront,
    corosrv_server,
    load_front,
    machine_load,
    upstream_servers,
)

EVENTS_PER_S = 2000.0  # of all streams together
PLATEAU = 10.0  # seconds for which all streams are open


@dataclass(frozen=True, slots=True)
class Load:
    """How many streams, and how long each is."""

    n_streams: int
    plateau: float = PLATEAU

    @property
    def rate(self) -> float:
        """Tokens a second of each stream."""
        return EVENTS_PER_S / self.n_streams

    @property
    def ramp(self) -> float:
        """Seconds in which all streams are opened and have their first token."""
        return 1.0 + 0.007 * self.n_streams

    @property
    def n_tokens(self) -> int:
        return max(int(self.rate * (3 * self.ramp + 2 * self.plateau)), 2)

    def command(self) -> list[str]:
        """Returns the command of the upstream."""
        model = f"synthetic:?tokens_per_s={self.rate}"
        return corosrv_server(self.n_streams, self.n_tokens + 64, model)


@dataclass(frozen=True, slots=True)
class Figures:
    """What forwarding cost the front. Times in seconds."""

    n_open: int
    outcome: Outcome
    idle: Usage
    loaded: Usage
    event_us: float
    health: list[float]


def measure(front: LoadedFront, load: Load) -> Figures:
    """Opens all streams, looks at the front while they run, and follows them to their ends."""
    body = {"model": MODEL, "prompt": "a", "stream": True, "max_tokens": load.n_tokens, "ignore_eos": True}
    sent = request("/v1/completions", json.dumps(body).encode())
    server = front.server
    idle = usage(server.worker_pid)
    client = LoadClient(server.address)
    for number in range(load.n_streams):
        client.open(sent)
        if number % 50 == 49:
            client.run_for(0)
    deadline = time.monotonic() + 10 * load.ramp
    while client.n_waiting and time.monotonic() < deadline:
        client.run_for(0.5)
    events, began = _events(client), usage(server.worker_pid)
    health = HealthProbe(server.address)
    health.start()
    client.run_for(load.plateau)
    taken = sorted(health.stop())
    n_open, loaded = client.n_open, usage(server.worker_pid)
    n_events = max(_events(client) - events, 1)
    outcome = client.run(60 + 4 * load.n_tokens / load.rate)
    return Figures(n_open, outcome, idle, loaded, 1e6 * (loaded.main_cpu - began.main_cpu) / n_events, taken)


def _events(client: LoadClient) -> int:
    return client.outcome.n_events + sum(stream.n_events for stream in client.streams())


def show(figures: Figures) -> None:
    outcome, taken = figures.outcome, figures.health
    print(f"{figures.n_open} streams open at once; {outcome.n_done} complete, {outcome.n_failed} failed")
    if outcome.failures:
        print(f"  {set(outcome.failures)}")
    print(f"  threads idle / loaded: {figures.idle.threads} / {figures.loaded.threads}")
    print(f"  memory of a stream: {(figures.loaded.rss - figures.idle.rss) / max(figures.n_open, 1) / 1000:.1f} kB")
    print(f"  the front's thread for each event: {figures.event_us:.0f} µs")
    print(f"  /health p50 {1000 * taken[len(taken) // 2]:.1f} ms, p99 {1000 * taken[int(0.99 * len(taken))]:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[5000])
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(machine_load())
    for n_streams in arguments.streams:
        load = Load(n_streams)
        with upstream_servers(load.command()) as servers, load_front(servers, n_streams) as front:
            show(measure(front, load))
    print(machine_load())


if __name__ == "__main__":
    main()
