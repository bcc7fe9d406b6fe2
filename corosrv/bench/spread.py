"""One round of load from as many processes as asked for. Blocks; from two processes on, this one only listens."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from time import monotonic

from corosrv.bench.load import PROGRESS_INTERVAL, Counts, Load, Work, Yield
from corosrv.bench.outcome import Outcome
from corosrv.errors import BenchError

LEAD = 0.05  # seconds from the word to the beginning, so that all processes begin together
READY_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Round:
    """All outcomes of one round, and the seconds of processor time of each process that made it."""

    outcomes: list[Outcome]
    cpu: tuple[float, ...]
    is_interrupted: bool


def run(work: Work, on_progress: Callable[[Counts], None]) -> Round:
    """Runs the whole of `work`, from one process or several. Raises BenchError."""
    n = work.plan.processes
    yields = [Load(work).run(monotonic(), on_progress)] if n == 1 else _spread(work, n, on_progress)
    outcomes = [outcome for one in yields for outcome in one.outcomes]
    return Round(outcomes, tuple(one.cpu for one in yields), any(one.is_interrupted for one in yields))


def _spread(work: Work, n: int, on_progress: Callable[[Counts], None]) -> list[Yield]:
    # Spawned, not forked: a fork would take this process's gevent hub along.
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for part in range(n):
            ours, theirs = context.Pipe()
            process = context.Process(target=_child, args=(replace(work, part=part, parts=n), theirs), daemon=True)
            process.start()
            theirs.close()  # ours ends when the child does
            pipes.append(ours)
            processes.append(process)
        return _follow(pipes, on_progress)
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()


def _follow(pipes: list[Connection], on_progress: Callable[[Counts], None]) -> list[Yield]:
    """Starts all children at one moment and listens until each has sent what it got."""
    for pipe in pipes:
        if not pipe.poll(READY_TIMEOUT):
            raise BenchError("a process of the load did not start")
        _receive(pipe)
    begin = monotonic() + LEAD
    for pipe in pipes:
        pipe.send(begin)
    counts = [Counts() for _ in pipes]
    yields: dict[int, Yield] = {}
    while len(yields) < len(pipes):
        try:
            ready = wait([pipe for i, pipe in enumerate(pipes) if i not in yields], PROGRESS_INTERVAL)
            for i in (i for i, pipe in enumerate(pipes) if pipe in ready):
                message = _receive(pipes[i])
                if isinstance(message, Yield):
                    yields[i] = message
                elif isinstance(message, Counts):
                    counts[i] = message
            on_progress(sum(counts, Counts()))
        except KeyboardInterrupt:
            continue  # the children got it as well, and send what they have
    return [yields[i] for i in range(len(pipes))]


def _receive(pipe: Connection) -> object:
    try:
        message = pipe.recv()
    except EOFError:
        raise BenchError("a process of the load died") from None
    if isinstance(message, BenchError):
        raise message
    return message


def _child(work: Work, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        load = Load(work)
        pipe.send("ready")
        pipe.send(load.run(pipe.recv(), pipe.send))
    except BenchError as error:
        pipe.send(error)
