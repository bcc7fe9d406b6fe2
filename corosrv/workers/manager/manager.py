"""Runs the pools of an application as the plan says: the Worker Manager."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from corosrv.base.errors import Conflict, NotFound, Refused, SettingsError, ShuttingDown, Starting, Unavailable
from corosrv.contracts.jobs import State
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.manager.joined import JoinedWorkers
from corosrv.workers.manager.plan import LIVE, TICK, UNLIMITED, Claim, HostPlan, HostSnapshot, PlaceState, plan
from corosrv.workers.manager.pool_memory import Place
from corosrv.workers.manager.worker_pool import AppImport, MakeWorker, WorkerPool, terms_of

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.app_process import AppProcess

log = logging.getLogger("corosrv.manager")

MOST_WORKERS = 1024  # of one pool, that an operator may ask for
_LOG_SAYS_WHY = "the server's log says why"
CANCEL_TIME = 1.0  # seconds that calls have to end once they are cancelled


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """Holds the settings of the Worker Manager. Times are in seconds."""

    workers: int = 1  # of each pool whose author leaves it open, such as that of all plain functions
    start_timeout: float = 120.0  # after which a server without any worker gives up
    shutdown_grace: float = 25.0  # that running calls have when the server stops
    budget: Claim = UNLIMITED  # of the host: what all workers may claim together

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise SettingsError(f"workers must be from 1 to {MOST_WORKERS}, not {self.workers}")
        for name in ("start_timeout", "shutdown_grace"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} must be at least 0 seconds, not {getattr(self, name):g}")


class Manager:
    """Owns the pools and one greenlet, which looks at them once a second and whenever it is woken.

    Belongs to the thread of the hub on which it was started. Only `close` may be called from elsewhere.
    """

    def __init__(
        self,
        settings: ManagerSettings,
        make: MakeWorker,
        dispatcher: Dispatcher,
        *,
        has_app: bool = True,
        memory_elsewhere: Callable[[], float] = lambda: 0.0,
        on_unstartable: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_app`: False where workers only join. `memory_elsewhere`: bytes of the budget that others hold, such as
        loaded models. `on_unstartable` is called once with the reason if no pool has started a worker within the
        start_timeout.
        """
        self._settings = settings
        self._make = make
        self._dispatcher = dispatcher
        self._memory_elsewhere = memory_elsewhere
        self._on_unstartable = on_unstartable
        self._clock = clock
        self.has_app = has_app
        self._pools: dict[str, WorkerPool] = {}
        self.joined = JoinedWorkers(dispatcher, clock)
        self.on_unimportable: Callable[[str], None] = lambda reason: None  # after each failed import
        self._import = AppImport(make, clock, self._on_import, self._on_failed_import)
        self._wake = Event()
        self._hurry = Event()
        self._loop: gevent.Greenlet | None = None
        self._ending: gevent.Greenlet | None = None
        self._give_up_at: float | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begins to import the application and to start workers; returns at once. Does nothing without one."""
        if not self.has_app:
            return
        self._give_up_at = self._clock() + self._settings.start_timeout
        self._dispatcher.await_pools(self._import_standing)
        self._dispatcher.on_need(lambda pool: self._wakeup())
        self._loop = gevent.spawn(self._run)

    def _wakeup(self) -> None:
        self._wake.set()

    # What there is.

    @property
    def pools(self) -> Sequence[WorkerPool]:
        return tuple(self._pools.values())

    def pool(self, name: str) -> WorkerPool:
        """Returns a pool. Raises NotFound."""
        if name not in self._pools:
            raise NotFound(f"there is no pool {name[:120]!r}", "pool")
        return self._pools[name]

    def place(self, worker_id: str) -> Place:
        """Returns the place of a worker that runs, or failed last. Raises NotFound."""
        pool = self._pools.get(worker_id.rpartition("/")[0])
        place = self.joined.place(worker_id) if pool is None else pool.place(worker_id)
        if place is None or place.state is PlaceState.GONE:
            raise NotFound(f"there is no worker {worker_id[:120]!r}", "worker")
        return place

    @property
    def shown_places(self) -> list[Place]:
        """The places that have a process, or had one that failed: those of pools, and those of workers that joined."""
        return [place for pool in self.pools for place in pool.shown_places] + self.joined.shown_places

    @property
    def held_memory(self) -> int:
        """Bytes of the host's budget that worker processes claim."""
        in_pools = sum(pool.memory.claim.memory * len(pool.live_places) for pool in self.pools)
        return int(in_pools + self.joined.claim.memory)

    @property
    def state(self) -> State:
        """READY when every pool that has to have a worker has one that is ready."""
        if self._ending is not None or self._is_closed:
            return State.DRAINING
        if self._is_importing or self._unready():
            return State.STARTING
        return State.READY

    def check(self) -> None:
        """Raises the Unavailable that says to clients why the state is not READY."""
        if self.state is State.DRAINING:
            raise ShuttingDown("the server is shutting down")
        if self._is_importing:
            raise Starting(self._import_standing())
        if unready := self._unready():
            failed = next((pool for pool in unready if pool.memory.crashes.last_reason), unready[0])
            raise Unavailable(f"no worker of the pool {failed.name} is ready{_trouble_for_clients(failed)}")

    @property
    def failure(self) -> str:
        """Says why the application could not be imported, in its own words; empty if it was, or may still be."""
        return self._import.reason if not self._pools else ""

    def _import_standing(self) -> str:
        """Says to clients why no pool is there. What the application raised is not for them."""
        if self._import.reason:
            return f"the application could not be imported; {_LOG_SAYS_WHY}"
        return "the application is being imported"

    @property
    def _is_importing(self) -> bool:
        return self.has_app and not self._pools

    def _unready(self) -> list[WorkerPool]:
        return [pool for pool in self.pools if pool.memory.least > 0 and not pool.has_ready]

    # What an operator asks for.

    def drain(self, worker_id: str) -> None:
        """Replaces a worker: starts another where the host has room, then drains this one. Raises NotFound.

        Returns at once. A worker that is ending already is left alone. One that has joined is only drained: whoever
        started it starts another.
        """
        place = self.place(worker_id)
        if place.state is PlaceState.READY and place.pool in self._pools:
            place.is_outgoing = True
        elif place.state in LIVE:
            place.drain("an operator wants it replaced")
        self._wakeup()

    def remove(self, worker_id: str, incarnation: int) -> None:
        """Ends a worker's process now, whatever runs on it; its pool starts another if it needs one.

        Raises NotFound, and Conflict if that process was replaced already.
        """
        place = self.place(worker_id)
        if place.incarnation != incarnation:
            raise Conflict(
                f"worker {worker_id} is at incarnation {place.incarnation}, not {incarnation}", "incarnation"
            )
        assert place.worker is not None
        log.warning("worker %s is removed by an operator", worker_id)
        place.worker.kill()

    def scale(self, pool: str, least: int, most: int) -> None:
        """Sets how many workers a pool may have, from the next look on. Raises NotFound and Refused."""
        found = self.pool(pool)
        if not 0 <= least <= most <= MOST_WORKERS:
            raise Refused(f"0 <= min <= max <= {MOST_WORKERS} must hold, but min is {least} and max is {most}", "min")
        log.info("pool %s may have from %d to %d workers now", pool, least, most)
        found.set_limits(least, most)
        self._wakeup()

    # The loop.

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                next_at = self._look()
            except Exception:  # the pools have to be kept, whatever went wrong with one look
                log.exception("the pools could not be looked at")
                next_at = self._clock() + TICK
            self._wake.wait(max(0.0, next_at - self._clock()))

    def _look(self) -> float:
        """Carries out the plan; returns when to look again at the latest. Never waits."""
        now = self._clock()
        if not self._pools:
            self._import.look(now)
            next_at = min(now + TICK, self._import.retry_at or now + TICK)
        else:
            decided = self._plan(now)
            self._do(decided)
            next_at = decided.next_at
        self._give_up_if_late(now)
        return next_at

    def _plan(self, now: float) -> HostPlan:
        stats = {key.key: key for key in self._dispatcher.stats().keys}
        snapshots = [pool.look(stats, now) for pool in self.pools]
        elsewhere = Claim(memory=self._memory_elsewhere()) + self.joined.claim
        return plan(snapshots, HostSnapshot(self._settings.budget, elsewhere), now)

    def _do(self, decided: HostPlan) -> None:
        for drain in decided.drains:
            if drain.makes_room_for:
                self._pools[drain.pool].memory.note_eviction(drain.makes_room_for)
            self._pools[drain.pool].drain(drain.worker, drain.reason)
        for start in decided.starts:
            self._pools[start.pool].start_worker(start.reason)
        for name, reason in decided.reasons.items():
            self._pools[name].reason = reason

    def _on_import(self, worker: AppProcess) -> None:
        """Makes the pools that the application has; its first process becomes the first worker."""
        for card in worker.pools:
            terms = terms_of(card, self._settings.workers)
            self._pools[card.name] = WorkerPool(
                card, terms, self._make, self._dispatcher, self._settings.budget, self._clock, self._wakeup
            )
        log.info("the application has the pools %s", ", ".join(self._pools))
        first = next(iter(self._plan(self._clock()).starts), None)
        if first is None:
            worker.drain("no pool needs a worker yet")
        else:
            self._pools[first.pool].adopt(worker)
        self._wakeup()

    def _on_failed_import(self) -> None:
        self.on_unimportable(self._import.reason)
        self._wakeup()

    def _give_up_if_late(self, now: float) -> None:
        """Tells once that no pool could start."""
        if self._give_up_at is None or self._ending is not None:
            return
        if any(pool.n_ready_ever for pool in self.pools) or self._is_content:
            self._give_up_at = None
        elif now >= self._give_up_at:
            self._give_up_at = None
            reason = self._reason_of_failure()
            log.error("no worker was ready within %g s: %s", self._settings.start_timeout, reason)
            self._on_unstartable(reason)

    @property
    def _is_content(self) -> bool:
        """True if there are pools, and none of them needs a worker."""
        return bool(self._pools) and not any(pool.memory.target for pool in self.pools)

    def _reason_of_failure(self) -> str:
        if not self._pools:
            return self._import.reason or "the application is still being imported"
        return "; ".join(f"pool {pool.name}: {_trouble(pool)}" for pool in self.pools if pool.memory.target)

    # The end.

    def stop(self) -> None:
        """Drains the calls that were taken within the grace, cancels the others, and ends all workers.

        Returns at once. The dispatcher refuses new calls from now on. A second call skips the grace.
        """
        self._dispatcher.shut_down()
        self.joined.close()
        if self._ending is None:
            log.info("stopping: running calls get %g s to finish", self._settings.shutdown_grace)
            self._ending = gevent.spawn(self._end)
        else:
            self.hurry()

    @property
    def is_ending(self) -> bool:
        """Tells whether stop() was called and something still runs."""
        return self._ending is not None and not self._ending.ready()

    def hurry(self) -> None:
        """Skips the grace. Returns at once."""
        if self._ending is None:
            self.stop()
        self._hurry.set()

    def _end(self) -> None:
        draining = gevent.spawn(self._dispatcher.drain, self._settings.shutdown_grace)
        gevent.wait([draining, self._hurry], count=1)
        draining.kill(block=False)
        self._end_loop()
        self._dispatcher.close()
        gevent.joinall([gevent.spawn(worker.stop, CANCEL_TIME) for worker in self._workers()])

    def _end_loop(self) -> None:
        """Stops planning, so that no worker is replaced any more."""
        if self._loop is not None:
            self._loop.kill(block=False)

    def _workers(self) -> list[AppProcess]:
        """Returns all processes that are not over."""
        workers = [place.worker for pool in self.pools for place in pool.live_places if place.worker is not None]
        if not self._import.is_over and self._import.worker is not None:
            workers.append(self._import.worker)
        return workers + self.joined.workers()

    def close(self) -> None:
        """Ends all processes now. Does not wait for them. Twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self.joined.close()
        self._end_loop()
        self._dispatcher.close()
        for worker in self._workers():
            worker.kill()


def _trouble_for_clients(pool: WorkerPool) -> str:
    if pool.memory.crashes.last_reason:
        return f": its processes fail; {_LOG_SAYS_WHY}"
    return ": one is starting" if pool.live_places else f": {pool.reason}" if pool.reason else ""


def _trouble(pool: WorkerPool) -> str:
    """Explains what keeps a pool from having a ready worker."""
    return pool.memory.crashes.last_reason or pool.reason or "its first worker is starting"
