"""No-op predictions through one worker process: `python -m tests.load.predictor_process [--slots 8] [--lean]`.

Prints how many a second go through all slots at once, and how long one alone takes, from the server's side: what HTTP
costs is not in it. With --lean the child is a loop of a few lines, and the figures are the server's own.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import dataclasses
import itertools
import pstats
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
from gevent.event import Event

from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Done, WorkerState
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig

NOTHING = "tests/predictors/nothing.py:Predictor"
LEAN = (sys.executable, "-m", "tests.load.lean_worker")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictor", default=NOTHING, help="FILE:NAME of one that does nothing")
    parser.add_argument("--lean", action="store_true", help="a child that is no predictor's")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--profile", action="store_true", help="where the server's side spends its time")
    arguments = parser.parse_args()
    config = WorkerConfig(predictor=arguments.predictor, slots=arguments.slots)
    if arguments.lean:
        config = dataclasses.replace(config, command=LEAN)
    with running(config) as worker:
        load = Load(worker)
        with profile() if arguments.profile else contextlib.nullcontext():
            full = load.run(arguments.slots, arguments.seconds)
        alone = load.run(1, arguments.seconds / 2)
    print(f"{arguments.slots} at once:  {full}")
    print(f"one alone:  {alone}")


@contextlib.contextmanager
def running(config: WorkerConfig) -> Iterator[PredictorProcess]:
    worker = PredictorProcess(config)
    changed = Event()
    worker.on_change(changed.set)
    worker.start()
    try:
        changed.wait(10)
        assert worker.state is WorkerState.READY, worker.setup.logs
        yield worker
    finally:
        worker.stop(5)


class Load:
    """Callers that send a prediction as soon as the last one ended."""

    def __init__(self, worker: PredictorProcess) -> None:
        self._worker = worker
        self._ids = map(str, itertools.count())

    def run(self, n_callers: int, seconds: float) -> str:
        """Its figures, in words."""
        pid = self._worker.pid
        assert pid is not None
        until = time.perf_counter() + seconds
        before, child_before = time.process_time(), cpu(pid)
        callers = [gevent.spawn(self._call, until) for _ in range(n_callers)]
        times = sorted(itertools.chain.from_iterable(caller.get() for caller in callers))
        used, child_used = time.process_time() - before, cpu(pid) - child_before
        n = len(times)
        half, most = times[n // 2] * 1e3, times[n * 99 // 100] * 1e3
        return (
            f"{n / seconds:6.0f} predictions/s, p50 {half:.2f} ms, p99 {most:.2f} ms; "
            f"processor time of each: server {used / n * 1e6:.0f} us, worker {child_used / n * 1e6:.0f} us"
        )

    def _call(self, until: float) -> list[float]:
        times = []
        while (began := time.perf_counter()) < until:
            self._predict()
            times.append(time.perf_counter() - began)
        return times

    def _predict(self) -> None:
        with self._worker.submit(PredictJob(next(self._ids), {}, "/nonexistent")) as reader:
            messages = list(reader)
        assert isinstance(messages[-1], Done), messages


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used, in all threads."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


@contextlib.contextmanager
def profile() -> Iterator[None]:
    with cProfile.Profile() as profiler:
        yield
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
