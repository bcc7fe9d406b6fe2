"""Computes the pause before the next try, after tries that failed one after the other."""

from __future__ import annotations


class Backoff:
    """Doubles the pause with every failure, up to a limit; a try that went well for long enough resets it.

    The caller passes the current time in; nothing waits.
    """

    def __init__(self, first: float, longest: float, recovery: float = 0.0) -> None:
        """Takes seconds. `recovery`: how long a try has to go well before its failure counts as the first again."""
        self._first = first
        self._longest = longest
        self._recovery = recovery
        self._pause = first
        self._well_since: float | None = None

    def succeed(self, now: float) -> None:
        """Records that the current try goes well. Only the first call for a try counts."""
        if self._well_since is None:
            self._well_since = now

    def fail(self, now: float) -> float:
        """Returns the seconds to pause before the next try."""
        if self._well_since is not None and now - self._well_since >= self._recovery:
            self._pause = self._first
        self._well_since = None
        pause, self._pause = self._pause, min(2 * self._pause, self._longest)
        return pause
