"""Keeps the workers that others have started and that have joined this server: they come and go as they like."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corosrv.base.errors import ShuttingDown, Unavailable
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.manager.plan import HOLDING, Claim, PlaceState
from corosrv.workers.manager.pool_memory import Place
from corosrv.workers.manager.worker_pool import claim_of
from corosrv.workers.worker.parent.app_worker import JOINED

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.app_process import AppProcess

log = logging.getLogger("corosrv.manager")

MOST_JOINED = 256  # workers at once

# Makes the worker for a place, named by its number, and for an incarnation.
MakeJoined = Callable[[str, int], "AppProcess"]


@dataclass(frozen=True, kw_only=True)
class Joining:
    """Says what a worker that joins has imported, or will.

    `pool`: of the application; empty: its only one. `host`: the address of its machine; empty: this one.
    """

    app_ref: str
    app_dir: str = ""
    is_factory: bool = False
    pool: str = ""
    host: str = ""


class JoinedWorkers:
    """Owns a place for each worker that has joined. Belongs to the hub's thread; nothing waits.

    The manager plans none of them: nobody here could start another, or end one to make room. What they claim of the
    host's budget is taken, also where that is more than there was: they run already. What runs on another machine
    claims nothing of this one.
    """

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._places: list[Place] = []
        self._elsewhere: set[Place] = set()  # those with workers on other machines
        self._is_closed = False

    @property
    def shown_places(self) -> list[Place]:
        """The places that have a process, or had one that failed."""
        return [place for place in self._places if place.state is not PlaceState.GONE]

    def workers(self) -> list[AppProcess]:
        """Returns all processes that are not over."""
        return [place.worker for place in self._places if place.state in HOLDING and place.worker is not None]

    @property
    def claim(self) -> Claim:
        """Returns what they take of the host together, as far as their applications have been imported."""
        here = (place.worker for place in self._places if place.state in HOLDING and place not in self._elsewhere)
        cards = (card for worker in here if worker for card in worker.pools if card.name == worker.pool)
        return sum(map(claim_of, cards), Claim())

    def place(self, worker_id: str) -> Place | None:
        return next((place for place in self._places if place.id == worker_id), None)

    def add(self, make: MakeJoined, host: str = "") -> AppProcess:
        """Makes a worker in a free place and returns it; whoever has asked for it starts it.

        `host`: the address of its machine; empty: this one. Raises ShuttingDown, and Unavailable where too many have
        joined.
        """
        if self._is_closed:
            raise ShuttingDown("the server is shutting down, and takes no more workers")
        place = self._free_place()
        worker = make(str(place.number), place.incarnation + 1)
        place.take(worker, self._clock())
        (self._elsewhere.add if host else self._elsewhere.discard)(place)
        worker.on_change(functools.partial(self._follow, place, worker))
        log.info("worker %s joins%s, incarnation %d", place.id, f" from {host}" if host else "", place.incarnation)
        return worker

    def _free_place(self) -> Place:
        for place in self._places:
            if place.state not in HOLDING:
                return place
        if len(self._places) >= MOST_JOINED:
            raise Unavailable(f"{MOST_JOINED} workers have joined, and no more may")
        self._places.append(Place(JOINED, len(self._places)))
        return self._places[-1]

    def _follow(self, place: Place, worker: AppProcess) -> None:
        now = self._clock()
        if place.worker is not worker or not place.follow(now):
            return
        if place.state is PlaceState.READY:
            log.info("%s is ready with %s", place.words(now), ", ".join(card.key for card in worker.handlers))
            self._dispatcher.add_host(worker)
        elif place.state not in HOLDING:
            self._dispatcher.remove_host(worker)
            self._dispatcher.note_crash(worker.keys_at_loss)
            level = logging.INFO if place.state is PlaceState.GONE else logging.WARNING
            log.log(level, "%s has left: %s", place.words(now), worker.reason)

    def close(self) -> None:
        """Takes no more workers from now on. Those that are there stay."""
        self._is_closed = True
