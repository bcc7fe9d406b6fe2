"""Runs one life of an app worker process that somebody else has started, and that has joined this server.

All that this server has of it is its connection: whoever started the process ends it with the connection, and the other
way round.
"""

from __future__ import annotations

import _socket
import contextlib
from collections.abc import Sequence

from gevent.event import Event

from corosrv.workers.wire import calls
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import JOINED, AppWorkerConfig, fault_of_registration
from corosrv.workers.worker.parent.asks import CallServices
from corosrv.workers.worker.parent.process import Exit

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
