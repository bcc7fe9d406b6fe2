"""A manager over a real dispatcher, whose worker processes are driven by hand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import gevent

from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferJob, InferRequest, ModelTarget
from corosrv.contracts.jobs.setup import NEXT, Setup, WorkerState, check_move
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.manager.manager import Manager, ManagerSettings
from corosrv.workers.wire.calls import PoolCard
from tests.workers.dispatch.hosts import FakeHost

TIMEOUT = 30.0  # seconds that anything may take


def pool_card(name: str = "default", *models: str, slots: int = 1, **options: object) -> PoolCard:
    handlers = [HandlerCard(model, concurrency=slots) for model in models or (name,)]
    return PoolCard(name, handlers, **options)


class ScriptedWorker(FakeHost):
    """One life of a process. It loads, registers, dies and ends when it is told, or by itself as its Script says."""

    def __init__(self, script: Script, pool: str | None, place: str, incarnation: int) -> None:
        super().__init__("", [], incarnation)
        self.script = script
        self.place = place
        self.pool = pool
        self.state = WorkerState.STARTING
        self.reason = ""
        self.setup = Setup()
        self.pools: list[PoolCard] = []
        self.pid: int | None = None
        self.rss = 0
        self.last_heartbeat: float | None = None
        self.served = self.failed = 0
        self.keys_at_loss: tuple[str, ...] = ()
        self.stop_timeout: float | None = None

    @property
    def id(self) -> str:
        return f"{self.pool or '?'}/{self.place}"

    @id.setter
    def id(self, id: str) -> None:
        pass

    @property
    def in_flight(self) -> int:
        return len(self.calls)

    def start(self) -> None:
        self.pid = 1000 + len(self.script.workers)
        if self.script.failure:
            gevent.spawn(self.fail, self.script.failure)
        elif self.script.starts:
            gevent.spawn(self.load)

    def load(self) -> None:
        had_pool = self.pool is not None
        self.pools = self.script.cards
        self.tell()
        if had_pool and self.script.starts:
            self.register()

    def choose(self, pool: str) -> None:
        self.pool = pool
        if self.script.starts:
            gevent.spawn(self.register)

    def register(self) -> None:
        card = next(card for card in self.script.cards if card.name == self.pool)
        self.handlers = card.handlers
        for slot in range(1, card.handlers[0].concurrency):
            self.permits.add(slot)
        self.groups = [type(self.groups[0])(tuple(range(len(card.handlers))), self.permits)]
        self.enter(WorkerState.READY)

    def enter(self, state: WorkerState, reason: str = "") -> None:
        check_move(self.state, state)
        self.state, self.reason = state, reason
        self.is_draining = state is not WorkerState.READY
        self.tell()

    def fail(self, reason: str) -> None:
        self.enter(WorkerState.SETUP_FAILED, reason)

    def crash(self, reason: str = "it crashed") -> None:
        self.state, self.reason = WorkerState.DEFUNCT, reason
        self.keys_at_loss = tuple(self.handlers[running.call.handler].key for running in self.calls)
        self.die()

    def drain(self, reason: str = "") -> None:
        if self.state is WorkerState.READY:
            self.enter(WorkerState.DRAINING, reason)
        self.end_if_idle()

    def end_if_idle(self) -> None:
        if self.state in (WorkerState.DRAINING, WorkerState.STARTING) and not self.calls:
            self.enter(WorkerState.STOPPED, "it was drained")

    def finish(self) -> None:
        """Ends the oldest call well."""
        self.served += 1
        self.calls[0].finish()
        self.end_if_idle() if self.state is WorkerState.DRAINING else None

    def stop(self, timeout: float) -> None:
        self.stop_timeout = timeout
        self.drain()
        self.kill()

    def kill(self) -> None:
        if NEXT[self.state]:
            self.state, self.reason = WorkerState.STOPPED, "it was killed"
            self.die()


@dataclass
class Script:
    """What the processes of an application do. `starts`: they load and register by themselves; `failure`: or fail."""

    cards: list[PoolCard]
    starts: bool = True
    failure: str = ""
    workers: list[ScriptedWorker] = field(default_factory=list)

    def make(self, pool: str | None, place: str, incarnation: int) -> ScriptedWorker:
        worker = ScriptedWorker(self, pool, place, incarnation)
        self.workers.append(worker)
        return worker

    def ids(self, *states: WorkerState) -> list[str]:
        """The workers in these states, READY ones if none is named."""
        return [worker.id for worker in self.workers if worker.state in (states or (WorkerState.READY,))]

    def worker(self, id: str) -> ScriptedWorker:
        """The last process of a place."""
        return next(worker for worker in reversed(self.workers) if worker.id == id)


@contextlib.contextmanager
def managed(*cards: PoolCard, script: Script | None = None, **settings: object) -> Iterator[tuple[Manager, Script]]:
    """Starts a manager, over `manager.dispatcher` for tests; all of it is closed at the end."""
    script = script or Script(list(cards))
    own = ("has_app", "on_unstartable", "memory_elsewhere", "clock")
    options = {name: settings.pop(name) for name in own if name in settings}
    dispatcher = Dispatcher()
    manager = Manager(ManagerSettings(**settings), script.make, dispatcher, **options)
    manager.dispatcher = dispatcher
    manager.start()
    try:
        yield manager, script
    finally:
        manager.close()


def call(manager: Manager, model: str = "default", timeout: float = TIMEOUT):
    """Submits a call, and returns its reader."""
    terms = Terms(deadline=time.monotonic() + timeout)
    return manager.dispatcher.submit(InferJob(ModelTarget(model), InferRequest(), terms=terms))


def end_of(reader) -> InferEnd:
    """Reads a call to its end."""
    with gevent.Timeout(TIMEOUT):
        items = []
        while not items or not isinstance(items[-1], InferEnd):
            items += reader.take()
    return items[-1]
