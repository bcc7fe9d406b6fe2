"""Forwarded chats a second of two fronts under overload, with and without Redis: `python -m tests.load.permits`.

Two upstreams, of which each front may use half without Redis, and both together all with it; in turn. The
medians of the chats a second are compared, and so is the processor's time of the fronts for a chat.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
from collections.abc import Iterator, Sequence

from tests.load.callers import run as run_callers
from tests.load.clients import request
from tests.load.process import usage
from tests.load.upstream_servers import (
    LoadedFront,
    UpstreamServer,
    chat,
    corosrv_server,
    load_front,
    machine_load,
    upstream_servers,
)
from tests.support.redis_server import redis_server

SLOTS = 4  # of each upstream
CROWD = 12  # clients of each front
SENT = request("/v1/chat/completions", chat("Hello.", 8))


def load(fronts: Sequence[LoadedFront], seconds: float) -> tuple[float, float]:
    """Returns the chats a second of all fronts together, and the seconds of their processors for one."""
    before = sum(usage(front.server.worker_pid).cpu for front in fronts)
    counts: list[int] = []

    def ask(front: LoadedFront) -> None:
        outcome = run_callers(front.server.address, SENT, CROWD, seconds)
        assert not outcome.refusals, outcome.refusals[0][:200]
        counts.append(len(outcome.times))

    clients = [threading.Thread(target=ask, args=(front,)) for front in fronts]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(counts) == len(fronts)
    cpu = sum(usage(front.server.worker_pid).cpu for front in fronts) - before
    return sum(counts) / seconds, cpu / sum(counts)


@contextlib.contextmanager
def loaded_pair(servers: Sequence[UpstreamServer], slots: int, **settings: str) -> Iterator[list[LoadedFront]]:
    """Starts two fronts of these servers, each of which gets `slots` calls at once from each front, or from both."""
    with load_front(servers, slots, **settings) as first, load_front(servers, slots, **settings) as second:
        yield [first, second]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    options = parser.parse_args()
    print(machine_load())
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        servers = stack.enter_context(upstream_servers(corosrv_server(SLOTS), corosrv_server(SLOTS)))
        pairs = {
            "without Redis": stack.enter_context(loaded_pair(servers, SLOTS // 2)),
            "with Redis": stack.enter_context(loaded_pair(servers, SLOTS, REDIS_URL=redis.url)),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in pairs}
        for fronts in pairs.values():
            load(fronts, 4.0)  # warm; permits of an empty Redis come after a beat
        for _ in range(options.rounds):
            for name, fronts in pairs.items():
                found[name].append(load(fronts, options.seconds))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (rate, cpu) in medians.items():
        print(f"{name}: {rate:.1f} chats a second, {1e6 * cpu:.0f} µs of a front's processor for each")
    (bare, bare_cpu), (shared, shared_cpu) = medians.values()
    print(f"ratio of the medians {shared / bare:.3f}; of the processor's time {shared_cpu / bare_cpu:.2f}")
    print(machine_load())


if __name__ == "__main__":
    main()
