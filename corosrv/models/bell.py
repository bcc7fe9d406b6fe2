"""A bell that anybody may ring, and one waits for."""

from __future__ import annotations

import os

from corosrv.errors import NoDescriptor
from corosrv.waits import TimedOut, wait_readable


class Bell:
    """Rung from any thread, also by the garbage collector; heard by a greenlet, which lets others run, or a thread.

    Rings while nobody waits are heard by the next wait, as one. Unless it is closed, its descriptor lives
    as long as whoever may ring it.
    """

    _fd = -1

    def __init__(self) -> None:
        """Raises NoDescriptor when the process may not open another one."""
        try:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise NoDescriptor("no file descriptor is left to wait for a model: raise the limit (ulimit -n)") from error

    def ring(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float | None) -> None:
        """Returns when it was rung, or after `timeout` seconds. Waits."""
        try:
            wait_readable(self._fd, timeout)
        except TimedOut:
            return
        os.eventfd_read(self._fd)

    def close(self) -> None:
        """By its owner, when nobody can ring it any more. Twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
