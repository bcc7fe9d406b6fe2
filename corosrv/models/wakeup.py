"""Wakes one waiter, from any thread."""

from __future__ import annotations

import os

from corosrv.base.errors import NoDescriptor
from corosrv.base.waits import TimedOut, wait_readable


class Wakeup:
    """Wakes a greenlet or a thread that waits; may be set from any thread, also by the garbage collector.

    Calls of set() while nobody waits end the next wait, all together. Unless close() is called, the descriptor lives
    as long as the object.
    """

    _fd = -1

    def __init__(self) -> None:
        """Raises NoDescriptor when the process has no file descriptor left."""
        try:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise NoDescriptor("no file descriptor is left to wait for a model: raise the limit (ulimit -n)") from error

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float | None) -> None:
        """Waits until set() is or was called, or for `timeout` seconds."""
        try:
            wait_readable(self._fd, timeout)
        except TimedOut:
            return
        os.eventfd_read(self._fd)

    def close(self) -> None:
        """Closes the descriptor; nobody may call set() any more. Twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
