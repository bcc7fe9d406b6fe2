"""The workers that others have started and that have joined this server: they come and go as they like.

All that this server has of such a process is its connection: whoever started it ends it with the connection, and the
other way round.
"""

from __future__ import annotations

import _socket
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gevent.event import Event

from corosrv.base.errors import ShuttingDown, Unavailable
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.manager.plan import HOLDING, Claim, PlaceState
from corosrv.workers.manager.pool_memory import Place
from corosrv.workers.manager.worker_pool import claim_of
from corosrv.workers.wire import calls
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import JOINED, AppWorkerConfig, fault_of_registration
from corosrv.workers.worker.parent.call_services import CallServices
from corosrv.workers.worker.parent.process import Exit

log = logging.getLogger("corosrv.manager")

_NOW = int(_socket.MSG_PEEK | _socket.MSG_DONTWAIT)


class PeerProcess:
    """A process that is known by its connection alone, and counts as ended when that is closed.

    So nobody here signals a process that is not this server's. Belongs to the hub's thread.
    """

    def __init__(self, connection: _socket.socket, pid: int) -> None:
        """`connection`: its control channel, which the channel owns and closes. `pid`: of whoever opened it."""
        self._connection = connection
        self.pid = pid
        self.exit: Exit | None = None
        self._has_ended = Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end of the connection, at most `timeout` seconds. Returns whether it has ended."""
        if self.exit is None and self._has_hung_up():
            self._end()
        return bool(self._has_ended.wait(timeout))

    def _has_hung_up(self) -> bool:
        try:
            return not self._connection.recv(1, _NOW)
        except BlockingIOError:
            return False
        except OSError:  # reset, or closed on this side
            return True

    def terminate(self) -> None:
        """Ends the connection, and so the process."""
        self.kill()

    def kill(self) -> None:
        """Ends the connection, and so the process."""
        if self.exit is None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(_socket.SHUT_RDWR)
            self._end()

    def _end(self) -> None:
        self.exit = Exit(None)
        self._has_ended.set()


class JoinedProcess(AppProcess):
    """An app worker over a connection that the other side has opened. It ends with that connection."""

    def __init__(
        self,
        config: AppWorkerConfig,
        pool: str,
        place: str,
        incarnation: int,
        services: CallServices | None,
        connection: _socket.socket,
        pid: int,
        expected: Sequence[calls.PoolCard] = (),
    ) -> None:
        """`pool`: of the application which the process imports; empty: its only one. `connection`: owned from now on.

        `pid`: of whoever opened the connection. `expected`: the pools that its application must be like; none: any.
        """
        super().__init__(config, pool or None, place, incarnation, services)
        self._expected = {card.name: card for card in expected}
        self._connection = connection
        self._peer = PeerProcess(connection, pid)

    @property
    def id(self) -> str:
        return f"{JOINED}/{self._place}"

    def _link_process(self) -> None:
        self._link.adopt(self._peer, self._connection)

    def _on_loaded(self, message: calls.Loaded) -> None:
        if self.pool is None and len(message.pools) == 1:
            self.pool = message.pools[0].name
        super()._on_loaded(message)
        if self.pool is None:
            names = ", ".join(pool.name for pool in message.pools)
            self._fail_setup(f"the application has the pools {names}: say which one with --pool")
        elif self._expected and (card := self._pool_card()) is not None:
            self._compare(card)

    def _compare(self, card: calls.PoolCard) -> None:
        """Refuses handlers that are not those of this server's application."""
        expected = self._expected.get(card.name)
        if expected is None:
            names = ", ".join(self._expected)
            self._fail_setup(f"this server's application has no pool {card.name!r}; it has {names}")
        elif fault := fault_of_registration(card.handlers, expected):
            self._fail_setup(f"{fault}: run the same version of the application here and there")

    def _exit_words(self, exit: Exit) -> str:
        return "the worker's connection ended"

    def _stop_unstarted(self) -> bool:
        if not self._link.is_started:
            self._connection.close()
        return super()._stop_unstarted()


if TYPE_CHECKING:
    from corosrv.workers.worker.parent.app_process import AppProcess

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
