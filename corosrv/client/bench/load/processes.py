"""Runs one round of load from one process or several, and shows its progress in a terminal.

Blocks; with several processes, this one only collects.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import TextIO

from corosrv.base.errors import BenchError
from corosrv.client.bench.load.round import PROGRESS_INTERVAL, Counts, Load, Work, Yield
from corosrv.client.bench.load.target import RequestOutcome

CLEAR = "\r\x1b[K"
WIDTH = 110


class Progress:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_shown = out.isatty()

    def begin(self, title: str, n: int) -> Callable[[Counts], None]:
        """Begins a round of `n` requests; returns what is to be called with its counts from time to time."""
        began = monotonic()

        def tell(counts: Counts) -> None:
            self._show(line(title, n, counts, monotonic() - began))

        tell(Counts())
        return tell

    def close(self) -> None:
        """Clears the line. Twice is harmless."""
        self._show("")

    def _show(self, text: str) -> None:
        if self._is_shown:
            self._out.write(CLEAR + text)
            self._out.flush()


def line(title: str, n: int, counts: Counts, seconds: float) -> str:
    failed = f", {counts.failed} failed" if counts.failed else ""
    speed = counts.events / seconds if seconds > 0 else 0.0
    return f"{title}: {counts.done}/{n} done{failed}, {counts.open} open, {speed:.0f} tokens/s"[:WIDTH]


LEAD = 0.05  # seconds from the start message to the beginning, so that all processes begin together
READY_TIMEOUT = 60.0  # seconds
STOP_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """All outcomes of one round, and the seconds of processor time of each process that made it."""

    outcomes: list[RequestOutcome]
    cpu: tuple[float, ...]
    is_interrupted: bool


def run(work: Work, on_progress: Callable[[Counts], None]) -> Round:
    """Runs the whole of `work`, from one process or several. Raises BenchError."""
    # A process without a client would keep its share of the requests to itself.
    n = min(work.plan.processes, work.point.clients or work.plan.processes)
    yields = [_run_here(work, on_progress)] if n == 1 else _spread(work, n, on_progress)
    outcomes = [outcome for part in yields for outcome in part.outcomes]
    return Round(outcomes, tuple(part.cpu for part in yields), any(part.is_interrupted for part in yields))


def _run_here(work: Work, on_progress: Callable[[Counts], None]) -> Yield:
    load = Load(work)
    with load.stopped_by(signal.SIGINT, signal.SIGTERM):
        return load.run(monotonic(), on_progress)


class _LoadProcess:
    """One process of a load, seen from here."""

    def __init__(self, work: Work) -> None:
        # Spawned, not forked: a fork would take this process's gevent hub along.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_child, args=(work, theirs), daemon=True)
        # This process passes an interrupt on to its children, which inherit that they ignore it themselves.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        theirs.close()  # ours ends when the child does
        self.counts = Counts()
        self.result: Yield | None = None

    def take(self) -> None:
        """Takes the process's next message: its counts, or its result."""
        message = _receive(self.pipe)
        if isinstance(message, Yield):
            self.result = message
        elif isinstance(message, Counts):
            self.counts = message

    def close(self) -> None:
        if self.result is None:
            self.process.terminate()
        self.process.join(STOP_TIMEOUT)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _spread(work: Work, n: int, on_progress: Callable[[Counts], None]) -> list[Yield]:
    with contextlib.ExitStack() as stack:
        parts = []
        for i in range(n):
            parts.append(_LoadProcess(replace(work, part=i, parts=n)))
            stack.callback(parts[-1].close)
        _begin(parts)
        stack.enter_context(_interrupts_end(parts))
        while waiting := [part for part in parts if part.result is None]:
            ready = wait([part.pipe for part in waiting], PROGRESS_INTERVAL)
            for part in waiting:
                if part.pipe in ready:
                    part.take()
            on_progress(sum((part.counts for part in parts), Counts()))
        return [part.result for part in parts if part.result is not None]


@contextlib.contextmanager
def _interrupts_end(parts: list[_LoadProcess]) -> Iterator[None]:
    """Passes an interrupt on to the processes, so that all results still come; raised here, it could lose a message."""

    def pass_on(*_: object) -> None:
        for part in parts:
            part.process.terminate()

    handler = signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _begin(parts: list[_LoadProcess]) -> None:
    """Starts all parts at one moment, once they are ready."""
    for part in parts:
        if not part.pipe.poll(READY_TIMEOUT):
            raise BenchError("a process of the load did not start")
        part.take()
    begin = monotonic() + LEAD
    for part in parts:
        part.pipe.send(begin)


def _receive(pipe: Connection) -> object:
    try:
        message = pipe.recv()
    except EOFError:
        raise BenchError("a process of the load died") from None
    if isinstance(message, BenchError):
        raise message
    return message


def _child(work: Work, pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until there is something to lose
    try:
        load = Load(work)
        with load.stopped_by(signal.SIGTERM):
            pipe.send("ready")
            pipe.send(load.run(pipe.recv(), pipe.send))
    except BenchError as error:
        pipe.send(error)
    except KeyboardInterrupt:
        pipe.send(Yield(is_interrupted=True))
