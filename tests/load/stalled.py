"""Clients that stop reading, beside others that read: `python -m tests.load.stalled [--stalled 1000] [--reading 100]`.

Prints what the stalled ones cost the others and the process, and whether they complete once they read again. The
synthetic model gives the time of paused sequences to the running ones, so those get faster; slower is what must not be.
"""

from __future__ import annotations

import argparse
import resource
import socket
import time
from dataclasses import dataclass

from tests.load.clients import LoadClient
from tests.load.process import Server, serving, usage
from tests.load.streams import EVENTS, completion

WINDOW = 10.0  # seconds of each measurement
PATIENCE = 120.0  # seconds for all clients to be stalled, and for all to complete


@dataclass(frozen=True, slots=True)
class Reading:
    """The chunks that readers got in one window, and their cost."""

    events_per_s: float
    front_us: float
    rss_before: int
    rss_after: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stalled", type=int, default=1000)
    parser.add_argument("--reading", type=int, default=100)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each stream")
    parser.add_argument("--tokens", type=int, default=1000, help="of each stalled stream, more than buffers hold")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = {
        "MODEL": f"synthetic:?tokens_per_s={arguments.rate}",
        "SLOTS": str(arguments.stalled + arguments.reading),
        "CTX": "1000000",
        "STEP_MS": "60000",
        "READER_BYTES": "1024",
        "STALL_TIMEOUT_S": "3600",
        "WRITE_TIMEOUT_S": "3600",
    }
    with serving(settings) as server:
        for name, value in measure(server, arguments.stalled, arguments.reading, arguments.tokens).items():
            print(f"{name:42} {value}", flush=True)


def measure(server: Server, n_stalled: int, n_reading: int, n_tokens: int) -> dict[str, object]:
    reading = LoadClient(server.address)
    for _ in range(n_reading):
        reading.open(completion(999_000))
    reading.run_for(2)
    alone = read(server, reading)

    stalled = LoadClient(server.address)
    for _ in range(n_stalled):
        stalled.open(completion(n_tokens), receive_buffer=4096)
    began = time.monotonic()
    while server.metric("corosrv_paused") < n_stalled:
        if time.monotonic() > began + PATIENCE:
            raise RuntimeError(f"only {server.metric('corosrv_paused'):.0f} of {n_stalled} streams were paused")
        reading.run_for(0.5)
    seconds = time.monotonic() - began
    beside = read(server, reading)
    for stream in reading.streams():
        reading.drop(stream)
    for stream in stalled.streams():
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 131_072)
    outcome = stalled.run(PATIENCE)
    failures = set(outcome.failures) or ""
    return {
        "stalled / reading": f"{n_stalled} / {n_reading}",
        "seconds until all were stalled": f"{seconds:.0f}",
        "events a second, alone / beside": f"{alone.events_per_s:.0f} / {beside.events_per_s:.0f}",
        "CPU of the front thread per event (us)": f"{alone.front_us:.1f} / {beside.front_us:.1f}",
        "RSS alone (MB)": f"{alone.rss_after / 1e6:.1f}",
        f"RSS beside, {WINDOW:.0f} s apart (MB)": f"{beside.rss_before / 1e6:.1f} / {beside.rss_after / 1e6:.1f}",
        "completed / failed once they read again": f"{outcome.n_done} / {outcome.n_failed} {failures}",
    }


def read(server: Server, client: LoadClient) -> Reading:
    n_before, before, began = server.metric(EVENTS), usage(server.worker_pid), time.monotonic()
    client.run_for(WINDOW)
    n_events, after = server.metric(EVENTS) - n_before, usage(server.worker_pid)
    return Reading(
        events_per_s=n_events / (time.monotonic() - began),
        front_us=(after.main_cpu - before.main_cpu) / n_events * 1e6,
        rss_before=before.rss,
        rss_after=after.rss,
    )


if __name__ == "__main__":
    main()
