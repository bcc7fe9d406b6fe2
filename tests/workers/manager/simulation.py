"""A host with pools of workers, simulated event by event: hours pass in milliseconds."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from corosrv.workers.manager.plan import UNLIMITED, Claim, GroupSnapshot, HostSnapshot, PlaceState, WorkerSnapshot, plan
from corosrv.workers.manager.pool_memory import CrashRecord, PoolMemory, PoolTerms


@dataclass
class SimWorker:
    id: str
    started_at: float
    state: PlaceState = PlaceState.STARTING
    ready_at: float = 0.0
    n_running: int = 0
    idle_since: float = 0.0


@dataclass
class SimPool:
    """One pool, whose calls take `service` seconds. `crashes`: how long a worker lives once ready; None: for ever."""

    terms: PoolTerms
    arrivals: Iterator[float] = field(default_factory=lambda: iter(()))
    service: Callable[[], float] = lambda: 0.1
    slots: int = 1
    slo: float = 60.0
    start_time: float = 2.0
    life: float | None = None
    memory: PoolMemory = None
    workers: list[SimWorker] = field(default_factory=list)
    queue: deque[float] = field(default_factory=deque)
    ewma: float = 0.0
    ended: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)  # when a call began, and its wait
    n_admitted: int = 0
    n_answered: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.memory = PoolMemory(self.terms, CrashRecord(jitter=lambda: 1.0))

    @property
    def name(self) -> str:
        return self.terms.name

    def of(self, *states: PlaceState) -> list[SimWorker]:
        return [worker for worker in self.workers if worker.state in states]


class Simulation:
    """Runs pools under the planner. `changes`: (time, pool, +1 or -1) for each start and drain."""

    def __init__(self, *pools: SimPool, budget: Claim = UNLIMITED) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.now = 0.0
        self.changes: list[tuple[float, str, int]] = []
        self.reasons: dict[str, str] = {}
        self.most_held = Claim()
        self.most_starting = 0
        self._budget = budget
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.at(0.0, self._tick)
        for pool in pools:
            self._next_arrival(pool)

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def run(self, until: float) -> Simulation:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return self

    # Calls.

    def _next_arrival(self, pool: SimPool) -> None:
        if (time := next(pool.arrivals, None)) is not None:
            self.at(time, lambda: self._arrive(pool))

    def _arrive(self, pool: SimPool) -> None:
        pool.n_admitted += 1
        pool.queue.append(self.now)
        self._dispatch(pool)
        self._next_arrival(pool)

    def _dispatch(self, pool: SimPool) -> None:
        for worker in pool.of(PlaceState.READY):
            while pool.queue and worker.n_running < pool.slots:
                pool.waits.append((self.now, self.now - pool.queue.popleft()))
                worker.n_running += 1
                seconds = pool.service()
                self.at(self.now + seconds, lambda worker=worker, seconds=seconds: self._end(pool, worker, seconds))

    def _end(self, pool: SimPool, worker: SimWorker, seconds: float) -> None:
        pool.n_answered += 1
        pool.ended += seconds
        pool.ewma = pool.ewma + 0.3 * (seconds - pool.ewma) if pool.ewma else seconds
        worker.n_running -= 1
        worker.idle_since = self.now
        if worker.state is PlaceState.DRAINING and worker.n_running == 0:
            pool.workers.remove(worker)
        self._dispatch(pool)

    # Workers.

    def _tick(self) -> None:
        standings = [
            pool.memory.stand(self._workers(pool), self._groups(pool), self.now) for pool in self.pools.values()
        ]
        decided = plan(standings, HostSnapshot(self._budget), self.now)
        self.reasons = decided.reasons
        for drain in decided.drains:
            self._drain(self.pools[drain.pool], drain.worker, drain.makes_room_for)
        for start in decided.starts:
            self._start(self.pools[start.pool])
        held = sum((pool.terms.claim * len(pool.workers) for pool in self.pools.values()), Claim())
        self.most_held = Claim(max(held.gpus, self.most_held.gpus), max(held.memory, self.most_held.memory))
        starting = sum(len(pool.of(PlaceState.STARTING)) for pool in self.pools.values())
        self.most_starting = max(self.most_starting, starting)
        self.at(self.now + 1.0 if decided.next_at >= self.now + 1.0 else decided.next_at, self._tick)

    def _workers(self, pool: SimPool) -> tuple[WorkerSnapshot, ...]:
        return tuple(
            WorkerSnapshot(
                worker.id,
                worker.state,
                worker.started_at,
                worker.n_running,
                None if worker.n_running else worker.idle_since,
            )
            for worker in pool.workers
        )

    def _groups(self, pool: SimPool) -> tuple[GroupSnapshot, ...]:
        oldest = self.now - pool.queue[0] if pool.queue else 0.0
        in_use = sum(worker.n_running for worker in pool.of(PlaceState.READY))
        return (GroupSnapshot(pool.name, pool.slots, len(pool.queue), oldest, pool.ewma, pool.slo, in_use, pool.ended),)

    def _start(self, pool: SimPool) -> None:
        worker = SimWorker(f"{pool.name}/{next(pool.numbers)}", self.now)
        pool.workers.append(worker)
        pool.memory.note_start(self.now)
        self.changes.append((self.now, pool.name, 1))
        self.at(self.now + pool.start_time, lambda: self._ready(pool, worker))

    def _ready(self, pool: SimPool, worker: SimWorker) -> None:
        if worker not in pool.workers:
            return
        worker.state, worker.ready_at, worker.idle_since = PlaceState.READY, self.now, self.now
        pool.memory.note_ready(self.now - worker.started_at)
        if pool.life is not None:
            self.at(self.now + pool.life, lambda: self._crash(pool, worker))
        self._dispatch(pool)

    def _crash(self, pool: SimPool, worker: SimWorker) -> None:
        pool.workers.remove(worker)
        pool.memory.crashes.add(self.now, worker.ready_at)

    def _drain(self, pool: SimPool, id: str, makes_room_for: str) -> None:
        worker = next(worker for worker in pool.workers if worker.id == id)
        if makes_room_for:
            pool.memory.note_eviction(makes_room_for)
        self.changes.append((self.now, pool.name, -1))
        if worker.state is PlaceState.STARTING or worker.n_running == 0:
            pool.workers.remove(worker)
        else:
            worker.state = PlaceState.DRAINING


def evenly(rate: float, begin: float = 0.0, end: float = float("inf")) -> Iterator[float]:
    """Yields the times of calls that come in equal distances."""
    return itertools.takewhile(lambda time: time < end, (begin + n / rate for n in itertools.count()))


def at_random(rate: float, rng: random.Random, begin: float = 0.0, end: float = float("inf")) -> Iterator[float]:
    """Yields the times of calls that know nothing of each other."""
    time = begin
    while (time := time + rng.expovariate(rate)) < end:
        yield time


def together(n: int, time: float) -> Iterator[float]:
    """Yields the times of calls that come at once."""
    return itertools.repeat(time, n)
