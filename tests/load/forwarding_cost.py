"""What a front's processor pays for forwarding: `python -m tests.load.forwarding_cost [--versus FOLDER] [--profile]`.

The upstream computes nothing (`tests.load.plain_upstream`), and is a process of its own, as the front is; this one
sends the requests. Prints the processor time of all of the front's threads for a short chat, once where 16 connections
ask all the time and once where one does, and for an event of 32 streams with 50 events a second each; medians of
rounds. --versus: the front of another checkout's `corosrv` is loaded in turn with this one, and their ratio printed.
--profile: where the front spends its time (needs py-spy).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

from tests.load.callers import run
from tests.load.clients import LoadClient, request
from tests.load.plain_upstream import command
from tests.load.predictions import profile
from tests.load.process import Server, usage
from tests.load.upstream_servers import chat, load_front, machine_load, upstream_servers

PATH = "/v1/chat/completions"
SHORT = request(PATH, chat("Say a few words.", 24))
N_BUSY = 16  # connections
N_STREAMS = 32
INTERVAL = 0.02  # seconds between two events of a stream
START_SECONDS = 20.0
PARTS = (f"chat, {N_BUSY} at once", "chat, one at a time", "event")


def chat_cost(server: Server, n_connections: int, seconds: float) -> float:
    """Returns the seconds of processor time that the front takes for a short chat."""
    before = usage(server.worker_pid).cpu
    outcome = run(server.address, SHORT, n_connections, seconds)
    assert not outcome.refusals, outcome.refusals[0]
    return (usage(server.worker_pid).cpu - before) / len(outcome.times)


def event_cost(server: Server, n_streams: int, seconds: float) -> float:
    """Returns the seconds of processor time that the front takes for an event, while all streams run."""
    client = LoadClient(server.address)
    sent = request(PATH, chat("Tell me more.", int((seconds + START_SECONDS) / INTERVAL), stream=True))
    for _ in range(n_streams):
        client.open(sent)
    deadline = time.monotonic() + START_SECONDS
    while client.n_waiting and time.monotonic() < deadline:
        client.run_for(0.1)
    n_before, before = _n_events(client), usage(server.worker_pid).cpu
    client.run_for(seconds)
    n_events, cpu = _n_events(client) - n_before, usage(server.worker_pid).cpu - before
    assert client.n_open == n_streams, client.outcome.failures
    for stream in client.streams():
        client.drop(stream)
    return cpu / n_events


def _n_events(client: LoadClient) -> int:
    return sum(stream.n_events for stream in client.streams())


def costs(server: Server, seconds: float) -> list[float]:
    """Returns the seconds of processor time for each of PARTS."""
    return [
        chat_cost(server, N_BUSY, seconds),
        chat_cost(server, 1, seconds),
        event_cost(server, N_STREAMS, seconds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versus", metavar="FOLDER")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print(machine_load())
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(upstream_servers(command(INTERVAL)))
        fronts = [stack.enter_context(load_front(servers, 4 * N_STREAMS)).server]
        if options.versus is not None:
            fronts.append(stack.enter_context(load_front(servers, 4 * N_STREAMS, checkout=options.versus)).server)
        for front in fronts:
            chat_cost(front, N_BUSY, 1.0)  # warm
        if options.profile:
            for measure in (lambda: chat_cost(fronts[0], 1, 5.0), lambda: event_cost(fronts[0], N_STREAMS, 5.0)):
                with profile(fronts[0].worker_pid, 5.0):
                    measure()
        rounds: list[list[list[float]]] = [[] for _ in fronts]
        for _ in range(options.rounds):
            for front, taken in zip(fronts, rounds, strict=True):
                taken.append(costs(front, options.seconds))
    for number, part in enumerate(PARTS):
        medians = [1e6 * statistics.median(one[number] for one in taken) for taken in rounds]
        ratio = f", {medians[0] / medians[1]:.2f} of the other's {medians[1]:.1f}" if len(medians) > 1 else ""
        print(f"{part}: {medians[0]:.1f} µs of the front's processor{ratio}")
    print(machine_load())


if __name__ == "__main__":
    main()
