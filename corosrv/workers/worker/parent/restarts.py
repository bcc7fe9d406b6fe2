"""Starts another process in place of one that died, after a pause that grows with deaths in a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent

from corosrv.workers.dispatch.backoff import Backoff


class Restarts:
    """Owns the pause after a death, and counts the restarts. Belongs to the thread of one hub.

    The processes are their owner's, who tells of READY and of deaths, and makes the next process when called.
    """

    def __init__(
        self,
        start_next: Callable[[], None],
        backoff: Backoff,
        log: logging.Logger,
        process_name: str,
        *,
        is_wanted: bool = True,
    ) -> None:
        """Calls `start_next`, which may wait, in a greenlet of its own after each pause.

        `process_name`: what the line of log before the pause calls it. Without `is_wanted` nothing is ever started.
        """
        self._start_next = start_next
        self._backoff = backoff
        self._log = log
        self._process_name = process_name
        self._is_wanted = is_wanted
        self._greenlet: gevent.Greenlet | None = None
        self.count = 0

    def note_ready(self) -> None:
        """Records that the process at hand is READY: if it lives long, its death counts as the first again."""
        self._backoff.succeed(time.monotonic())

    def note_death(self, *, is_own_fault: bool = True) -> None:
        """Starts the next process after the pause, unless restarts are not wanted. Returns at once.

        A process that was ended for what it was given to do, and not for a fault of its own, is followed without one.
        """
        if self._is_wanted:
            pause = self._backoff.fail(time.monotonic()) if is_own_fault else 0.0
            self._greenlet = gevent.spawn(self._run, pause)

    def _run(self, pause: float) -> None:
        self._log.warning("%s is started again in %g s", self._process_name, pause)
        gevent.sleep(pause)
        self.count += 1
        self._start_next()

    def give_up(self) -> None:
        """Starts nothing any more, also if a pause runs. Returns at once."""
        self._is_wanted = False
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
