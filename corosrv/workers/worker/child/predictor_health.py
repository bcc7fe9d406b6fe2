"""The author's own health check: one at a time, in a thread of its own, within a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corosrv.workers.worker.child.runtime import describe

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

LIMIT = 5.0  # seconds
_FAILED = "Healthcheck failed"  # how Cog's reasons begin


class HealthcheckRunner:
    """Answers each question once, within the limit. Any thread may ask."""

    def __init__(
        self,
        check: Callable[[], Any] | None,
        answer: Callable[[str, str | None], None],
        loop: AbstractEventLoop | None = None,
        limit: float = LIMIT,
    ) -> None:
        """`answer(id, reason)`, of any thread; the reason is None when all is well. `loop`: where a coroutine runs."""
        self._check = check
        self._answer = answer
        self._loop = loop
        self._limit = limit
        self._timers: dict[str, threading.Timer] = {}  # of the questions that wait for the running check, by id
        self._is_running = False
        self._lock = threading.Lock()

    def ask(self, id: str) -> None:
        """Starts a check, or shares the running one's outcome. Does not wait."""
        if self._check is None:
            self._answer(id, None)
            return
        limit = threading.Timer(self._limit, self._give_up, [id])
        limit.daemon = True
        with self._lock:
            self._timers[id] = limit
            is_first, self._is_running = not self._is_running, True
        limit.start()
        if is_first:
            threading.Thread(target=self._run, name="corosrv-healthcheck", daemon=True).start()

    def _run(self) -> None:
        reason = self._reason()
        with self._lock:
            self._is_running = False
            timers, self._timers = self._timers, {}
        for id, limit in timers.items():
            limit.cancel()
            self._answer(id, reason)

    def _reason(self) -> str | None:
        try:
            result = self._call()
        except BaseException as error:  # also sys.exit() of user code
            return f"{_FAILED}: {describe(error)}"
        return f"{_FAILED}: user-defined healthcheck returned False" if result is False else None

    def _call(self) -> Any:
        assert self._check is not None, "a check runs that there is none of"
        import inspect

        if not inspect.iscoroutinefunction(self._check):
            return self._check()
        import asyncio

        if self._loop is None:
            return asyncio.run(self._check())
        return asyncio.run_coroutine_threadsafe(self._check(), self._loop).result()

    def _give_up(self, id: str) -> None:
        """Answers a health check that took too long. The check goes on, and no other starts meanwhile."""
        with self._lock:
            is_waiting = self._timers.pop(id, None) is not None
        if is_waiting:
            self._answer(id, f"{_FAILED}: user-defined healthcheck timed out after {self._limit:.1f} seconds")
