"""Keeps the worker processes of one pool: starts them in places, offers them to the dispatcher, ends them.

The size is the plan's; `group_snapshots` reads from the dispatcher's numbers what is asked of the pool. `AppImport`
starts the first process of an application, which imports it and says which pools it has.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.setup import NEXT, WorkerState
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import HandlerHost
from corosrv.workers.dispatch.stats import KeyStats
from corosrv.workers.manager.plan import HOLDING, Claim, GroupSnapshot, PlaceState, PoolSnapshot, shortage
from corosrv.workers.manager.pool_memory import CrashRecord, Place, PoolMemory, PoolTerms
from corosrv.workers.wire.calls import PoolCard
from corosrv.workers.worker.parent.app_worker import LEASE_EXPIRED

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.app_process import AppProcess

log = logging.getLogger("corosrv.manager")

# Makes a process for a pool (None: it imports the application, and waits), a place in it, and an incarnation.
MakeWorker = Callable[[str | None, str, int], "AppProcess"]


def group_snapshots(
    handlers: Sequence[HandlerCard], stats: Mapping[str, KeyStats], hosts: Iterable[HandlerHost]
) -> tuple[GroupSnapshot, ...]:
    """Returns what is asked of each group of a pool's handlers. `stats`: by key. `hosts`: the ready ones."""
    hosts = tuple(hosts)
    numbers = sorted({handler.group for handler in handlers})
    return tuple(
        _snapshot([handler for handler in handlers if handler.group == number], stats, _in_use(number, hosts))
        for number in numbers
    )


def _in_use(number: int, hosts: Iterable[HandlerHost]) -> int:
    return sum(
        group.permits.in_use
        for host in hosts
        for group in host.groups
        if any(host.handlers[position].group == number for position in group.handlers)
    )


def _snapshot(handlers: Sequence[HandlerCard], stats: Mapping[str, KeyStats], in_use: int) -> GroupSnapshot:
    known = [stats[handler.key] for handler in handlers if handler.key in stats]
    # Where calls wait, theirs is the time that counts.
    pressed = [key for key in known if key.depth] or known
    depth = sum(key.depth for key in known)
    work = sum(key.depth * (key.service_mean or 0.0) for key in known)
    return GroupSnapshot(
        handlers[0].name or handlers[0].key,
        max(handlers[0].concurrency, 1),
        depth,
        max((key.oldest or 0.0 for key in known), default=0.0),
        work / depth if depth else 0.0,
        min((key.slo for key in pressed), default=handlers[0].slo_ms / 1000),
        in_use,
        sum(key.services.sum for key in known),
    )


_HAS_ENDED = (PlaceState.GONE, PlaceState.FAILED)


def terms_of(card: PoolCard, n_workers: int) -> PoolTerms:
    """Returns the terms of a pool; `n_workers` is the size of one whose author leaves it open."""
    least = n_workers if card.min_workers is None else card.min_workers
    most = max(least, n_workers if card.min_workers is None else 1) if card.max_workers is None else card.max_workers
    cold_start = None if card.cold_start_ms is None else card.cold_start_ms / 1000
    return PoolTerms(card.name, least, max(least, most), claim_of(card), card.priority, cold_start)


def claim_of(card: PoolCard) -> Claim:
    """Returns what each worker of a pool takes of the host."""
    return Claim(card.gpus, card.memory_mb * 1e6)


class WorkerPool:
    """Owns the places of one pool. Belongs to the hub's thread; nothing waits."""

    def __init__(
        self,
        card: PoolCard,
        terms: PoolTerms,
        make: MakeWorker,
        dispatcher: Dispatcher,
        budget: Claim,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`budget`: the host's. `on_change` is called when a place has changed its state; it must not wait."""
        self.card = card
        self.memory = PoolMemory(terms)
        self.places: list[Place] = []
        self.restarts: Counter[str] = Counter()  # by what had ended the process before
        self.reason = ""  # what the planner says
        self.snapshot: PoolSnapshot | None = None  # of the last look
        self.n_ready_ever = 0
        self._adopted: AppProcess | None = None
        self._make = make
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_change = on_change
        self._expected: tuple[str, float] | None = None
        self._fatal = "" if terms.claim.fits(budget) else shortage(terms.claim, budget)
        self._tell()

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def live_places(self) -> list[Place]:
        return [place for place in self.places if place.state in HOLDING]

    @property
    def shown_places(self) -> list[Place]:
        """The places that have a process, or had one that failed."""
        return [place for place in self.places if place.state is not PlaceState.GONE]

    @property
    def has_ready(self) -> bool:
        return any(place.state is PlaceState.READY for place in self.places)

    # Looking.

    def look(self, stats: Mapping[str, KeyStats], now: float) -> PoolSnapshot:
        """Decides the pool's target, and returns where it stands. `stats`: by key."""
        ready = [place for place in self.places if place.state is PlaceState.READY]
        for place in ready:
            self.memory.crashes.note_well(now, place.ready_at)
        hosts = [place.worker for place in ready if place.worker is not None]
        groups = group_snapshots(self.card.handlers, stats, hosts)
        workers = tuple(place.snapshot(now) for place in self.live_places)
        self.snapshot = self.memory.stand(workers, groups, now)
        self._tell()
        return self.snapshot

    def _tell(self) -> None:
        """Tells the dispatcher whether calls may wait for a worker."""
        crashes = self.memory.crashes
        reason = self._fatal and f"the pool {self.name} can start no worker: {self._fatal}"
        if self.memory.most == 0:
            reason = f"the pool {self.name} may have no worker"
        elif crashes.is_looping:
            reason = f"the pool {self.name} is crashlooping"
        patience = float(round(self.memory.patience))
        if self._expected != (reason, patience):
            self._expected = (reason, patience)
            self._dispatcher.expect(
                self.name, self.card.handlers, can_start=not reason, reason=reason, patience=patience
            )  # fmt: skip

    # Starting.

    def start_worker(self, reason: str) -> None:
        """Starts a process in the first place that is free."""
        place = self._free_place()
        worker = self._make(self.name, str(place.number), place.incarnation + 1)
        self._take(place, worker)
        log.info("pool %s: worker %s starts, incarnation %d: %s", self.name, place.id, place.incarnation, reason)
        worker.start()

    def adopt(self, worker: AppProcess) -> None:
        """Takes over a process that has imported the application, and has no pool yet."""
        self._adopted = worker
        place = self._free_place()
        self._take(place, worker)
        log.info("pool %s: worker %s is the process that imported the application", self.name, place.id)
        worker.choose(self.name)

    def _take(self, place: Place, worker: AppProcess) -> None:
        now = self._clock()
        place.take(worker, now)
        self.memory.note_start(now)
        worker.on_change(functools.partial(self._follow, place, worker))

    def _free_place(self) -> Place:
        free = next((place for place in self.places if place.state in _HAS_ENDED), None)
        if free is None:
            free = Place(self.name, len(self.places))
            self.places.append(free)
        return free

    # Following.

    def _follow(self, place: Place, worker: AppProcess) -> None:
        now = self._clock()
        if place.worker is not worker or not place.follow(now):
            return
        if place.state is PlaceState.READY:
            self._on_ready(place, worker, now)
        elif place.state in _HAS_ENDED:
            self._on_end(place, worker, now)
        self._on_change()

    def _on_ready(self, place: Place, worker: AppProcess, now: float) -> None:
        if worker is not self._adopted:  # which had imported the application before
            self.memory.note_ready(now - place.started_at)
        self.n_ready_ever += 1
        log.info("%s is ready", place.words(now))
        self._dispatcher.add_host(worker)

    def _on_end(self, place: Place, worker: AppProcess, now: float) -> None:
        self._dispatcher.remove_host(worker)
        if place.state is PlaceState.GONE:
            log.info("%s has ended: %s", place.words(now), worker.reason)
            self.restarts["replaced"] += place.is_outgoing
            return
        self.restarts[_failure_of(place, worker)] += 1
        if worker.keys_at_loss:  # the crash is its handler's, and no reason to keep others waiting
            log.error("%s failed: %s; the pool starts another at once", place.words(now), worker.reason)
            self._dispatcher.note_crash(worker.keys_at_loss)
            return
        pause = self.memory.crashes.add(now, place.ready_at, worker.reason)
        word = " is crashlooping, and" if self.memory.crashes.is_looping else ""
        log.error("%s failed: %s; the pool%s starts again in %.1f s", place.words(now), worker.reason, word, pause)
        self._tell()

    # Ending.

    def drain(self, worker_id: str, reason: str) -> None:
        """Ends a process when nothing runs on it."""
        place = self.place(worker_id)
        if place is not None and place.state in HOLDING:
            log.info("%s drains: %s", place.words(self._clock()), reason)
            place.drain(reason)

    def place(self, worker_id: str) -> Place | None:
        return next((place for place in self.places if place.id == worker_id), None)

    def set_limits(self, least: int, most: int) -> None:
        """Sets how many workers the pool may have, from the next look on."""
        self.memory.set_limits(least, most)
        self._tell()


def _failure_of(place: Place, worker: AppProcess) -> str:
    """Returns a word for how a process failed, of which there are few."""
    if place.ready_at is None:
        return "start_failed"
    return "lease_expired" if worker.reason.startswith(LEASE_EXPIRED) else "lost"


class AppImport:
    """Starts processes until one has imported the application. Belongs to the hub's thread; nothing waits."""

    def __init__(
        self, make: MakeWorker, clock: Callable[[], float], on_import: Callable[[AppProcess], None],
        on_failure: Callable[[], None]
    ) -> None:  # fmt: skip
        """`on_import` is handed the process, once; `on_failure` is called after each that failed."""
        self._make = make
        self._clock = clock
        self._on_import = on_import
        self._on_failure = on_failure
        self._crashes = CrashRecord()
        self._n_started = 0
        self.worker: AppProcess | None = None
        self.is_over = False

    @property
    def reason(self) -> str:
        """Says why the last try failed."""
        return self._crashes.last_reason

    @property
    def retry_at(self) -> float | None:
        """The time of the next try; None while one goes on."""
        return self._crashes.retry_at if self.worker is None else None

    def look(self, now: float) -> None:
        """Starts a process if it is time to."""
        if self.is_over or self.worker is not None or now < self._crashes.retry_at:
            return
        self._n_started += 1
        self.worker = worker = self._make(None, "0", self._n_started)
        worker.on_change(functools.partial(self._follow, worker))
        worker.start()

    def _follow(self, worker: AppProcess) -> None:
        if worker is not self.worker or self.is_over:
            return
        if worker.pools:
            self.is_over = True
            self._on_import(worker)
        elif worker.state is WorkerState.STOPPED:  # as somebody wanted
            self.worker = None
        elif not NEXT[worker.state]:
            self.worker = None
            pause = self._crashes.add(self._clock(), reason=worker.reason)
            self._on_failure()  # which may end this process, and says why then
            log.error("the application could not be imported: %s; the next try is in %.1f s", worker.reason, pause)
