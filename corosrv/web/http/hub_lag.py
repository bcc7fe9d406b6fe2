"""Measures how late the hub is and names what blocks it: one blocking call delays everybody."""

from __future__ import annotations

import gc
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from gevent import monkey

from corosrv.base.processor import garbage_times
from corosrv.base.waits import own_hub

log = logging.getLogger("corosrv.http")

_INTERVAL = 0.25  # seconds
BLOCKED = 0.1  # seconds that the hub may be late
_QUIET = 60.0  # seconds between two lines of log
_FRAMES = 12  # innermost ones, that such a line shows
# The system's own: what gevent puts in their place would wait in the hub that is to be watched.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_get_ident = monkey.get_original("_thread", "get_ident")
_start_thread = monkey.get_original("_thread", "start_new_thread")


class HubLag:
    """A timer that measures by how much it is late, and says what the hub did meanwhile where that is long.

    Runs only while it is started: an idle server stays asleep. Used from the hub's thread.
    """

    def __init__(self, observe: Callable[[float], None], count_blocked: Callable[[], None]) -> None:
        """`observe` is told every lag in seconds, `count_blocked` of each that is long."""
        self._observe = observe
        self._count_blocked = count_blocked
        self._timer: Any = None
        self._due = 0.0
        self._witness: _Witness | None = None
        self._quiet_until = 0.0

    def start(self) -> None:
        hub = own_hub()
        if hub is None or self._timer is not None:
            return
        if self._witness is None:
            self._witness = _Witness()
        garbage_times.watch()
        self._timer = hub.loop.timer(_INTERVAL, _INTERVAL)
        self._expect()
        self._timer.start(self._on_timer)

    def _expect(self) -> None:
        assert self._witness is not None
        self._witness.seen = ""
        self._due = time.monotonic() + _INTERVAL
        self._witness.watch(self._due + BLOCKED)

    def _on_timer(self) -> None:
        lag = max(0.0, time.monotonic() - self._due)
        self._observe(lag)
        if lag > BLOCKED:
            self._tell(lag)
        self._expect()

    def _tell(self, lag: float) -> None:
        self._count_blocked()
        if time.monotonic() < self._quiet_until:
            return
        self._quiet_until = time.monotonic() + _QUIET
        assert self._witness is not None
        log.warning("the hub was blocked for %.0f ms, in%s", 1000 * lag, self._cause(lag))

    def _cause(self, lag: float) -> str:
        assert self._witness is not None
        longest = garbage_times.longest_since(self._due - _INTERVAL)
        if longest is not None and longest.seconds > lag / 2:
            return f" the garbage collector: generation {longest.generation} took {1000 * longest.seconds:.0f} ms"
        if self._witness.seen:
            return f":\n{self._witness.seen}"
        # The witness could not look before it was over: the whole process was paused, or one call held the GIL.
        return " a pause of the process, or one call into C code that held Python's lock"

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
            assert self._witness is not None
            self._witness.watch(None)


class _Witness:
    """A thread that looks at what the hub's thread does when a moment has come, unless that was put off before.

    It only looks: to log would need locks that belong to the hub.
    """

    def __init__(self) -> None:
        self.seen = ""
        self._ident = _get_ident()
        self._moment: float | None = None
        self._is_needed = _allocate_lock()  # held while it is not
        self._is_needed.acquire()
        _start_thread(self._run, ())

    def watch(self, moment: float | None) -> None:
        """Looks at this moment of the monotonic clock; None: not at all."""
        self._moment = moment
        if moment is not None and self._is_needed.locked():
            self._is_needed.release()

    def _run(self) -> None:
        never = _allocate_lock()
        never.acquire()
        while self._is_needed.acquire():
            while (moment := self._moment) is not None:
                never.acquire(timeout=BLOCKED)  # sleeps, whatever became of time.sleep
                if self._moment == moment and time.monotonic() > moment:
                    self.seen = _stack_of(self._ident)
                    self._moment = None  # once; the next tick sets another


_is_looking = _allocate_lock()


def _stack_of(thread: int) -> str:
    """Describes what a thread does; empty for one that has ended.

    Nothing is collected meanwhile. sys._current_frames() holds a lock of the interpreter that a new thread waits for
    while it holds Python's own. A collection inside it calls Python code, which gives Python's lock away, so that each
    would wait for the other and the process stand still (CPython's gh-106883, in 3.11.7 and others).
    """
    with _is_looking:  # the collector is one for all threads
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            frame = sys._current_frames().get(thread)
        finally:
            if is_collecting:
                gc.enable()
    return "" if frame is None else "".join(traceback.format_stack(frame, limit=_FRAMES))
