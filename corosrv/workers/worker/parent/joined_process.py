"""Runs one life of an app worker process that somebody else has started, and that has joined this server."""

from __future__ import annotations

import _socket

from corosrv.workers.wire import calls
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from corosrv.workers.worker.parent.call_asks import HandlerServices
from corosrv.workers.worker.parent.peer_process import PeerProcess
from corosrv.workers.worker.parent.process import Exit
from corosrv.workers.worker.parent.registration import JOINED


class JoinedProcess(AppProcess):
    """Fulfils AppWorker over a connection that the other side has opened. It ends with that connection."""

    def __init__(
        self,
        config: AppWorkerConfig,
        pool: str,
        place: str,
        incarnation: int,
        services: HandlerServices | None,
        connection: _socket.socket,
        pid: int,
    ) -> None:
        """`pool`: of the application which the process imports; empty: its only one. `connection`: owned from now on.

        `pid`: of whoever opened the connection.
        """
        super().__init__(config, pool or None, place, incarnation, services)
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

    def _describe_end(self, exit: Exit) -> str:
        return "the worker's connection ended"

    def _never_started(self) -> None:
        super()._never_started()
        self._connection.close()
