"""Thousands of streams open at once on the synthetic model: `python -m tests.load.streams [--streams 5000]`.

Prints what a stream and an event cost the process that serves them, and how /health answers meanwhile.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

from tests.load.clients import LoadClient, request
from tests.load.health import HealthProbe
from tests.load.process import Server, serving, usage

EVENTS = "corosrv_eventfd_writes_total"  # one for each event that is sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=60, help="of each stream")
    parser.add_argument("--rate", type=float, default=1.0, help="tokens a second of each stream")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    model = f"synthetic:?tokens_per_s={arguments.rate}"
    with serving({"MODEL": model, "SLOTS": str(arguments.streams), "CTX": "512", "STEP_MS": "60000"}) as server:
        for name, value in measure(server, arguments.streams, arguments.tokens).items():
            print(f"{name:42} {value}")


def completion(n_tokens: int) -> bytes:
    body = {"prompt": "a", "stream": True, "max_tokens": n_tokens}  # one token of the synthetic model
    return request("/v1/completions", json.dumps(body).encode())


def measure(server: Server, n_streams: int, n_tokens: int) -> dict[str, object]:
    warm_up = LoadClient(server.address)
    for _ in range(20):
        warm_up.open(completion(n_tokens=1))
    warm_up.run(60)
    idle = usage(server.worker_pid)

    client = LoadClient(server.address)
    began = time.monotonic()
    sent = completion(n_tokens)
    for _ in range(n_streams):
        client.open(sent)
    opened = time.monotonic() - began
    while client.n_waiting and time.monotonic() < began + n_tokens:
        client.run_for(1)
    health = HealthProbe(server.address)
    health.start()
    n_before, before, before_at = server.metric(EVENTS), usage(server.worker_pid), time.monotonic()
    client.run_for(10)
    n_open = client.n_open
    n_after, after, seconds = server.metric(EVENTS), usage(server.worker_pid), time.monotonic() - before_at
    taken = sorted(health.stop())
    outcome = client.run(20 + 4 * n_tokens)
    n_events = n_after - n_before
    return {
        "streams open at once": n_open,
        "completed / failed": f"{outcome.n_done} / {outcome.n_failed} {set(outcome.failures) or ''}",
        "seconds to open them": f"{opened:.1f}",
        "events a second": f"{n_events / seconds:.0f}",
        "CPU of the front thread per event (us)": f"{(after.main_cpu - before.main_cpu) / n_events * 1e6:.1f}",
        "CPU of the process per event (us)": f"{(after.cpu - before.cpu) / n_events * 1e6:.1f}",
        "RSS per stream above idle (kB)": f"{(after.rss - idle.rss) / n_open / 1000:.1f}",
        "RSS idle (MB)": f"{idle.rss / 1e6:.0f}",
        "threads idle / loaded": f"{idle.threads} / {after.threads}",
        "/health answers": len(taken),
        "/health p50 / p99 / worst (ms)": " / ".join(
            f"{1000 * value:.1f}" for value in (statistics.median(taken), taken[int(0.99 * len(taken))], taken[-1])
        ),
    }


if __name__ == "__main__":
    main()
