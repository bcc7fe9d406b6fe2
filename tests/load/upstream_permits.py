"""The queue of a front against a bare semaphore on the same upstream: `python -m tests.load.upstream_permits`.

First, as many calls run on one upstream as it has permits: held back by the clients themselves, then by a front that
more clients ask than it may run; in turn, several times, and the medians of the calls a second are compared. Then a
second upstream is added while calls wait, and the time is printed until calls end at the new rate.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.load.callers import run as run_callers
from tests.load.clients import request
from tests.load.upstream_servers import (
    LoadedFront,
    UpstreamServer,
    chat,
    corosrv_server,
    llama_server,
    load_front,
    machine_load,
    upstream_servers,
)

PERMITS = 4
CROWD = 4  # clients of the front for each permit
N_TOKENS = 16
WINDOW = 1.0  # seconds over which a rate is taken
REACHED = 0.9  # of the rate that lasts, from which on it counts as reached
SENT = request("/v1/chat/completions", chat("Hello.", N_TOKENS))


def rate(port: int, n_clients: int, seconds: float) -> float:
    """Returns the calls a second that this many clients make, each one after the other."""
    began = time.perf_counter()
    outcome = run_callers(("127.0.0.1", port), SENT, n_clients, seconds)
    assert not outcome.refusals, outcome.refusals[0][:200]
    return len(outcome.times) / (time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Rates:
    """Calls a second, of one upstream."""

    bare: Sequence[float]
    front: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.front) / statistics.median(self.bare)


def compare(server: UpstreamServer, front: LoadedFront, rounds: int, seconds: float) -> Rates:
    """Measures both in turn, so that what else the machine does meets both."""
    bare, through = [], []
    for _ in range(rounds):
        bare.append(rate(server.port, PERMITS, seconds))
        through.append(rate(front.server.address[1], CROWD * PERMITS, seconds))
    return Rates(bare, through)


@dataclass(frozen=True, slots=True)
class Growth:
    """The calls that ended around the addition of an upstream: calls a second, and seconds since the addition."""

    before: float
    after: float  # the rate that lasts
    reached_after: float  # until the rate of the next WINDOW was the one that lasts, nearly


def grow(front: LoadedFront, added: UpstreamServer, seconds: float) -> Growth:
    """Adds an upstream in the middle of a load that is more than both can run at once."""
    ended: list[float] = []
    lock, is_over = threading.Lock(), threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            outcome = run_callers(front.server.address, SENT, 1, most=1)
            assert not outcome.refusals, outcome.refusals[0][:200]
            with lock:
                ended.append(time.monotonic())

    clients = [threading.Thread(target=ask) for _ in range(2 * CROWD * PERMITS)]
    for client in clients:
        client.start()
    try:
        time.sleep(seconds)
        added_at = time.monotonic()
        front.manage("POST", "/workers", {"url": added.url, "concurrency": PERMITS})
        time.sleep(2 * seconds)
        over = time.monotonic()
    finally:
        is_over.set()
        for client in clients:
            client.join()
    return growth(sorted(ended), added_at, seconds, over)


def growth(ended: Sequence[float], added_at: float, seconds: float, over: float) -> Growth:
    """Reads the rates from the times at which calls ended, which are sorted."""

    def count(begin: float, end: float) -> int:
        return bisect.bisect_left(ended, end) - bisect.bisect_left(ended, begin)

    before = count(added_at - 0.8 * seconds, added_at) / (0.8 * seconds)
    after = count(over - seconds, over) / seconds
    steps = (0.05 * step for step in range(int(20 * seconds)))
    counts = ((step, count(added_at + step, added_at + step + WINDOW)) for step in steps)
    reached_after = next((step for step, n in counts if n >= REACHED * after * WINDOW), float("inf"))
    return Growth(before, after, reached_after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--llama-server", default="", help="the program; otherwise corosrv with its synthetic model")
    arguments = parser.parse_args()
    program = arguments.llama_server
    command = llama_server(program, PERMITS) if program else corosrv_server(PERMITS)
    print(machine_load())
    with upstream_servers(command, command) as (first, second), load_front([first], PERMITS) as front:
        rate(first.port, PERMITS, 1.0)
        rates = compare(first, front, arguments.rounds, arguments.seconds)
        print(f"bare semaphore of {PERMITS}: {' '.join(f'{value:.2f}' for value in rates.bare)} calls a second")
        print(f"queue with {PERMITS} permits: {' '.join(f'{value:.2f}' for value in rates.front)}")
        print(f"ratio of the medians {rates.ratio:.3f}")
        grown = grow(front, second, arguments.seconds)
    print(
        f"one upstream {grown.before:.1f} calls a second, a second one added: {grown.after:.1f}, "
        f"reached {grown.reached_after:.2f} s after it was added"
    )
    print(machine_load())


if __name__ == "__main__":
    main()
