"""Queues calls of two fronts in Redis, kills Redis or a front in the middle with -9, and counts how each call ended.

    python -m tests.load.shared_queue --count 10000

prints a line for each of three runs: Redis with an append-only file that is synced always, one that is synced each
second, and a front that is killed. It fails if a call has no end, a handler that is not idempotent has started twice,
or more was lost than docs/cluster.md says.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.queue_front import FrontProcess, QueueFrontOptions
from tests.support.redis_server import RedisServer, redis_server

N_SLOTS = 8
LONGEST = 600.0  # seconds of one run
LEAST_RUN = 6.0  # seconds in which all slots run all calls
SYNCED_S = 2.5  # after which Redis with `everysec` has what it accepted on its disk


@dataclass
class FaultReport:
    """Says how the calls of a run ended. `early`: those that waited in Redis long before the fault."""

    fault: str
    n_calls: int
    seconds: float
    statuses: Counter[int]
    early_statuses: Counter[int]
    words: Counter[str]  # of errors
    n_starts: Counter[int]  # how often handlers started that are not idempotent, by how often

    def __str__(self) -> str:
        def words(counts: Counter[int]) -> str:
            return ", ".join(f"{name}: {n}" for name, n in sorted(counts.items()))

        return (
            f"{self.fault}: {self.n_calls} calls in {self.seconds:.1f} s; ended {words(self.statuses)}; "
            f"of those that waited before it {words(self.early_statuses)}; started {words(self.n_starts)}"
            + "".join(f"; {n} times: {error}" for error, n in self.words.items())
        )


@contextmanager
def fronts(redis: RedisServer, starts: Path, slots: dict[str, int], **options: Any) -> Iterator[list[FrontProcess]]:
    started = [
        FrontProcess(QueueFrontOptions(redis.url, name, str(starts), n_slots, ["sleep", "again"], **options))
        for name, n_slots in slots.items()
    ]
    try:
        for front in started:
            front.await_event("ready")
        yield started
    finally:
        for front in started:
            front.kill()


def kill_redis(count: int, fsync: str, **options: Any) -> FaultReport:
    """Kills Redis while calls wait in it, and starts it again; four fifths of them are there long before."""
    n_early, pause = count * 4 // 5, nap_of(count)
    with tempfile.TemporaryDirectory() as folder, redis_server(appendonly="yes", appendfsync=fsync) as redis:
        starts = Path(folder) / "starts"
        with fronts(redis, starts, {"a": N_SLOTS, "b": N_SLOTS}, **options) as pair:
            began = time.monotonic()
            owners = submit(pair, range(n_early), pause)
            await_that(lambda: has_all(pair, n_early) and n_lines(starts) > count // 20)
            time.sleep(SYNCED_S)  # by then, Redis has promised to have them
            redis.kill()
            late = Thread(target=lambda: owners.update(submit(pair, range(n_early, count), pause)))
            late.start()
            redis.start()
            late.join()
            ends = gather(owners)
            seconds = time.monotonic() - began
        return report(f"Redis killed, {fsync}", ends, n_early, starts, seconds)


def kill_front(count: int, **options: Any) -> FaultReport:
    """Kills one of two fronts that run calls which a third accepted."""
    with tempfile.TemporaryDirectory() as folder, redis_server() as redis:
        starts = Path(folder) / "starts"
        slots = {"entry": 0, "a": N_SLOTS, "b": N_SLOTS}
        with fronts(redis, starts, slots, **options) as (entry, _, doomed):
            began = time.monotonic()
            owners = submit([entry], range(count), nap_of(count))
            await_that(lambda: starts.read_text().count(" b\n") > count // 10)
            doomed.kill()
            ends = gather(owners)
            seconds = time.monotonic() - began
        return report("a front killed", ends, count, starts, seconds)


def nap_of(count: int) -> float:
    """Returns the seconds of each call with which the run takes longer than Redis needs to sync."""
    return max(LEAST_RUN * 2 * N_SLOTS / count, 0.01)


def submit(pair: list[FrontProcess], numbers: range, seconds: float) -> dict[str, FrontProcess]:
    """Submits calls by turns; every second one is of an idempotent handler."""
    owners = {}
    for number in numbers:
        front = pair[number % len(pair)]
        id = f"{number}"
        front.submit(id, model="sleep" if number // 2 % 2 else "again", seconds=seconds)
        owners[id] = front
    return owners


def gather(owners: dict[str, FrontProcess]) -> dict[str, dict[str, Any]]:
    """Waits for the end of each call, and returns it."""
    ends_at = time.monotonic() + LONGEST
    ends = {id: front.end_of(id, max(ends_at - time.monotonic(), 0.1)) for id, front in owners.items()}
    for front in set(owners.values()):
        assert front.n_ends == len(front.ends), "a call has ended twice"
    return ends


def report(fault: str, ends: dict[str, dict[str, Any]], n_early: int, starts: Path, seconds: float) -> FaultReport:
    lines = [line.split() for line in starts.read_text().splitlines()]
    started = Counter(int(call) for event, call, _ in lines if event == "started")
    once = Counter(started[number] for number in range(len(ends)) if number // 2 % 2)
    early = Counter(end["status"] for id, end in ends.items() if int(id) < n_early)
    statuses = Counter(end["status"] for end in ends.values())
    words = Counter(end["words"] for end in ends.values() if end["words"])
    return FaultReport(fault, len(ends), seconds, statuses, early, words, once)


def has_all(pair: list[FrontProcess], n_calls: int) -> bool:
    """Tells whether Redis has confirmed all calls that did not run at once."""
    counts = [front.count() for front in pair]
    return sum(count["submitted"] for count in counts) == n_calls and not any(count["sending"] for count in counts)


def n_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def await_that(is_true: Any) -> None:
    ends_at = time.monotonic() + LONGEST
    while not is_true():
        assert time.monotonic() < ends_at, "the calls did not begin to run"
        time.sleep(0.05)


def check_redis(found: FaultReport) -> None:
    """Asserts that what waited was answered well, and only calls that came around the fault were refused."""
    assert found.early_statuses.keys() == {200}, str(found)
    assert found.statuses.keys() <= {200, 503}, str(found)
    assert found.n_starts.keys() <= {0, 1}, str(found)


def check_front(found: FaultReport) -> None:
    """Asserts that only what ran in the front was lost, of handlers that are not idempotent."""
    assert found.statuses.keys() <= {200, 502}, str(found)
    assert found.statuses[502] <= N_SLOTS, str(found)
    assert found.n_starts.keys() <= {1}, str(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="calls of each run")
    count = parser.parse_args().count
    for fsync in ("always", "everysec"):
        found = kill_redis(count, fsync)
        print(found, flush=True)
        check_redis(found)
    found = kill_front(count)
    print(found, flush=True)
    check_front(found)


if __name__ == "__main__":
    main()
