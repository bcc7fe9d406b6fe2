"""Stands for a process that somebody else has started: all that this server has of it is its connection."""

from __future__ import annotations

import _socket
import contextlib

from gevent.event import Event

from corosrv.workers.worker.parent.process import Exit

_NOW = int(_socket.MSG_PEEK | _socket.MSG_DONTWAIT)


class PeerProcess:
    """Has ended when its connection has: whoever started the process ends it with the connection, and the other way.

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
