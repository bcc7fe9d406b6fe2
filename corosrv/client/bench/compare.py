"""Runs a plan: every point, round by round, the servers in turn, from one process or several.

Shows its progress in a terminal, and blocks. With several processes, this one only collects what they measured.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import TextIO

import msgspec

from corosrv.base.errors import BenchError
from corosrv.client.bench import figures as figures
from corosrv.client.bench.plan import BenchPlan, Mix, Point, in_turn
from corosrv.client.bench.report import PointFigures, Section, ServerFigures, n_cores
from corosrv.client.bench.round import GOODPUT_SHARE, PROGRESS_INTERVAL, Client, Counts, Load, Work, Yield
from corosrv.client.bench.target import RequestOutcome, Target

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


TITLES = {
    Mix.SHORT: "Short chats, each with a prompt of its own",
    Mix.LONG: "Prompts of about 1,500 tokens, each of its own",
    Mix.SHARED: "One system prompt of about 400 tokens, shared by all, new in each round",
    Mix.ARRIVALS: "Running streams while prompts of about 1,500 tokens arrive",
    Mix.FILE: "Conversations of a file",
    Mix.TRACE: "Requests of a trace, at their times and in their sizes",
}


_MOST_RATES = 14  # that are tried of a server
_CLOSE_RATES = 1.1  # ratio of the rate that was too high to the one that was not, at which the search ends


class _Models(msgspec.Struct):
    class Model(msgspec.Struct):
        id: str

    data: list[Model]


def find_model(target: Target) -> Target:
    """Returns the target with the first model that it lists, unless one was named. Raises BenchError."""
    status, body = Client(target, timeout=30).get("/models")
    if target.model:
        return target
    if status != 200:
        raise BenchError(f"{target.url}/models answers {status}: {body.decode('utf-8', 'replace')[:200]}; set --model")
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError as error:
        raise BenchError(f"{target.url}/models is not a list of models: {error}") from None
    if not models:
        raise BenchError(f"{target.url} lists no model: set --model")
    return replace(target, model=models[0].id)


class Comparison:
    """Runs one plan on one server or two. `section` has the figures so far."""

    def __init__(self, plan: BenchPlan, targets: list[Target], command: str, progress: Progress) -> None:
        self._plan = plan
        self._targets = targets
        self._progress = progress
        self.section = Section(
            title=TITLES[plan.mix],
            mix=plan.mix.value,
            tokens=plan.tokens,
            rounds=plan.rounds,
            command=command,
            is_forced=plan.is_forced,
            turns=plan.turns,
            limits=plan.limits.words,
        )

    def run(self) -> Section:
        """Runs all points; after an interrupt the section says so. Raises BenchError."""
        try:
            if self._plan.finds_goodput:
                for target in self._targets:
                    self._find_goodput(target)
            else:
                for point in self._plan.points:
                    self._run_point(point, self._targets)
        except KeyboardInterrupt:
            self.section.is_interrupted = True
        finally:
            self._progress.close()
        return self.section

    def _find_goodput(self, target: Target) -> None:
        """Looks for the highest rate at which nearly all requests keep the limits: doubles it, then halves the rest."""
        kept, missed, rate = 0.0, 0.0, self._plan.points[0].rate
        for _ in range(_MOST_RATES):
            (server,) = self._run_point(Point(rate=rate), [target])
            n_kept = sum(each.in_limits or 0 for each in server.rounds)
            if n_kept >= GOODPUT_SHARE * sum(each.requests for each in server.rounds):
                kept = rate
            else:
                missed = rate
            self.section.goodput[target.name] = kept
            if kept and missed and missed <= _CLOSE_RATES * kept:
                break
            rate = math.sqrt(kept * missed) if kept and missed else 2 * kept or missed / 2

    def _run_point(self, point: Point, targets: list[Target]) -> list[ServerFigures]:
        servers = {target: ServerFigures(target.name, target.url, _model_name(target.model)) for target in targets}
        self.section.points.append(
            PointFigures(point.label, point.clients, point.rate, self._plan.n_requests(point), list(servers.values()))
        )
        outcomes: dict[Target, list[list[RequestOutcome]]] = {target: [] for target in servers}
        for number in range(self._plan.warmup + self._plan.rounds):
            for target in in_turn(targets, number):
                load_round = self._run_round(target, point, number)
                if self._is_kept(number, load_round, servers[target]):
                    self._keep(load_round, servers[target], outcomes[target])
                if load_round.is_interrupted:
                    raise KeyboardInterrupt
        return list(servers.values())

    def _is_kept(self, number: int, load_round: Round, server: ServerFigures) -> bool:
        """Tells whether a round counts: no warm-up does, and an interrupted round only if there is no other."""
        if load_round.is_interrupted:
            return bool(load_round.outcomes) and not server.rounds
        return number >= self._plan.warmup

    def _keep(self, load_round: Round, server: ServerFigures, outcomes: list[list[RequestOutcome]]) -> None:
        outcomes.append(load_round.outcomes)
        server.rounds.append(
            figures.figures(load_round.outcomes, load_round.cpu, n_cores(), self._most_tokens(), self._plan.limits)
        )
        server.ttft_curve = figures.curve(_ttfts(outcomes))
        server.itl_curve = figures.curve(chain.from_iterable(map(figures.gaps, outcomes)))

    def _most_tokens(self) -> int:
        """Returns the tokens that each request asks for; 0 where each asks for its own number."""
        return 0 if self._plan.trace else self._plan.tokens

    def _run_round(self, target: Target, point: Point, number: int) -> Round:
        is_warmup = number < self._plan.warmup
        title = "warm-up" if is_warmup else f"round {number - self._plan.warmup + 1}/{self._plan.rounds}"
        on_progress = self._progress.begin(f"{point.label}, {title}, {target.name}", self._plan.n_requests(point))
        return run(Work(target, self._plan, point, number), on_progress)


def _ttfts(rounds: list[list[RequestOutcome]]) -> Iterable[float]:
    streams = (outcome for outcomes in rounds for outcome in outcomes if outcome.failure is None)
    return figures.ttfts(outcome for outcome in streams if not outcome.is_arriving)


def _model_name(model: str) -> str:
    """Drops the folders: llama-server names a model by its path, which reports should not show."""
    return model.rpartition("/")[2] if model.endswith(".gguf") else model
