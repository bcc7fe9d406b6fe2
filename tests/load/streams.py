"""Few and many streams open at once on the synthetic model: `python -m tests.load.streams [--streams 100 9500]`.

Prints what a stream and an event cost the process that serves them, how /health answers meanwhile, and by how much an
event costs more with many streams than with few. All loads have the same number of events a second. Processor time
moves with whatever else the machine does, so medians of many short windows are compared; what the bare sending
costs on this machine at the same moment is printed with them.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.load.clients import LoadClient, request
from tests.load.health import HealthProbe
from tests.load.process import Server, Usage, serving, usage
from tests.load.sending import bare_send

EVENTS = "corosrv_eventfd_writes_total"  # one for each event that is sent
LONGEST_COLLECTION = "corosrv_garbage_longest_seconds"  # of the younger generation, and full ones
N_WINDOWS = 10  # that are measured, while all streams are open
WINDOW = 1.0  # seconds of each


@dataclass(frozen=True, slots=True)
class Load:
    """How many streams, and how fast they are together."""

    n_streams: int
    events_per_s: float

    @property
    def rate(self) -> float:
        """Tokens a second of each stream."""
        return self.events_per_s / self.n_streams

    @property
    def ramp(self) -> float:
        """Seconds until all have their first event: thousands of prompts are read a few in each step."""
        return 0.004 * self.n_streams / self.rate

    @property
    def n_tokens(self) -> int:
        """Of each stream: none ends before the last window does."""
        return int(self.rate * (3 * N_WINDOWS * WINDOW + self.ramp))

    @property
    def settings(self) -> dict[str, str]:
        return {
            "MODEL": f"synthetic:?tokens_per_s={self.rate}",
            "SLOTS": str(self.n_streams),
            "CTX": str(self.n_tokens + 64),
            "STEP_MS": "60000",
        }


@dataclass(frozen=True, slots=True)
class Window:
    """Measures of one window: what the server did, and the processor time it took for each event, in microseconds."""

    n_events: float
    seconds: float
    front_us: float
    process_us: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of one load."""

    n_open: int
    n_done: int
    failures: list[str]
    windows: list[Window]
    send_us: float
    client_load: float
    bytes_per_stream: float
    idle: Usage
    loaded: Usage
    collections: tuple[float, float]  # the longest runs of the garbage collector, small and full, in seconds
    health: list[float]

    @property
    def front_us(self) -> float:
        return statistics.median(window.front_us for window in self.windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 9500])
    parser.add_argument("--events", type=float, default=9500.0, help="a second, of all streams together")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    seen: dict[int, list[Figures]] = {n_streams: [] for n_streams in arguments.streams}
    for _ in range(arguments.rounds):
        for n_streams in arguments.streams:
            load = Load(n_streams, arguments.events)
            with serving(load.settings) as server:
                seen[n_streams].append(measure(server, load))
            show(seen[n_streams][-1])
    if len(seen) > 1:
        compare(seen)


def completion(n_tokens: int) -> bytes:
    body = {"prompt": "a", "stream": True, "max_tokens": n_tokens}  # one token of the synthetic model
    return request("/v1/completions", json.dumps(body).encode())


def measure(server: Server, load: Load) -> Figures:
    warm_up = LoadClient(server.address)
    for _ in range(20):
        warm_up.open(completion(n_tokens=1))
    warm_up.run(60)
    idle = usage(server.worker_pid)

    client = LoadClient(server.address)
    opened = time.monotonic()
    sent = completion(load.n_tokens)
    for i in range(load.n_streams):
        client.open(sent)
        if i % 100 == 99:
            client.run_for(0)  # what came meanwhile
    while client.n_waiting and time.monotonic() < opened + 10 + load.ramp:
        client.run_for(0.5)
    client_cpu = time.process_time()
    windows = [look(server, client) for _ in range(N_WINDOWS)]
    client_load = (time.process_time() - client_cpu) / sum(window.seconds for window in windows)
    # Afterwards, because twenty answers a second are a tenth of the work.
    health = HealthProbe(server.address)
    health.start()
    client.run_for(N_WINDOWS * WINDOW)
    taken = sorted(health.stop())
    n_open, loaded = client.n_open, usage(server.worker_pid)
    small, full = (server.metric(f'{LONGEST_COLLECTION}{{generation="{i}"}}') for i in (1, 2))
    outcome = client.run(60 + 4 * load.n_tokens / load.rate)
    return Figures(
        n_open=n_open,
        n_done=outcome.n_done,
        failures=outcome.failures,
        windows=windows,
        send_us=bare_send() * 1e6,
        client_load=client_load,
        bytes_per_stream=(loaded.rss - idle.rss) / n_open,
        idle=idle,
        loaded=loaded,
        collections=(small, full),
        health=taken,
    )


def look(server: Server, client: LoadClient) -> Window:
    n_before, before, began = server.metric(EVENTS), usage(server.worker_pid), time.monotonic()
    client.run_for(WINDOW)
    n_events, after = server.metric(EVENTS) - n_before, usage(server.worker_pid)
    return Window(
        n_events=n_events,
        seconds=time.monotonic() - began,
        front_us=(after.main_cpu - before.main_cpu) / n_events * 1e6,
        process_us=(after.cpu - before.cpu) / n_events * 1e6,
    )


def median_and_least(values: Iterable[float]) -> str:
    seen = sorted(values)
    return f"{statistics.median(seen):.1f} / {seen[0]:.1f}"


def show(figures: Figures) -> None:
    taken, windows = figures.health, figures.windows
    events_per_s = sum(window.n_events for window in windows) / sum(window.seconds for window in windows)
    quantiles = statistics.median(taken), taken[int(0.99 * len(taken))], taken[-1]
    rows = {
        "streams open at once": figures.n_open,
        "completed / failed": f"{figures.n_done} / {len(figures.failures)} {set(figures.failures) or ''}",
        "events a second": f"{events_per_s:.0f}",
        "CPU of the front per event, median/least (us)": median_and_least(window.front_us for window in windows),
        "CPU of the process per event (us)": median_and_least(window.process_us for window in windows),
        "a bare send of as many bytes (us)": f"{figures.send_us:.1f}",
        "the client's share of a processor": f"{figures.client_load:.2f}",
        "RSS per stream above idle (kB)": f"{figures.bytes_per_stream / 1000:.1f}",
        "RSS idle (MB)": f"{figures.idle.rss / 1e6:.0f}",
        "threads idle / loaded": f"{figures.idle.threads} / {figures.loaded.threads}",
        "longest garbage collection, small / full (ms)": " / ".join(f"{1000 * s:.1f}" for s in figures.collections),
        "/health answers": len(taken),
        "/health p50 / p99 / worst (ms)": " / ".join(f"{1000 * value:.1f}" for value in quantiles),
    }
    for name, value in rows.items():
        print(f"{name:46} {value}", flush=True)
    print()


def compare(seen: dict[int, list[Figures]]) -> None:
    medians = {n: statistics.median(figures.front_us for figures in all_of) for n, all_of in seen.items()}
    few, many = min(medians), max(medians)
    print(
        f"an event of {many} streams costs {medians[many] / medians[few]:.2f} times one of {few} "
        f"({medians[many]:.1f} and {medians[few]:.1f} us of the front thread, medians of {len(seen[few])})"
    )


if __name__ == "__main__":
    main()
