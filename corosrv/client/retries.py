"""Decides whether a request of a rollout is sent again, and when."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PAUSE = 30.0  # seconds
_FIRST_PAUSE = 0.1
_AGAIN = frozenset({408, 425, 500, 502, 503, 504})  # what another try may mend
_BUSY = frozenset({409, 429, 503})  # the server says when to come back


class AttemptFailed(Exception):
    """A request has failed. A signal within this package, caught by RolloutRun.

    `may_repeat`: another try may go well. `pause`: seconds after which the server wants it, which is no fault and
    costs no retry; None where it says nothing.
    """

    def __init__(self, reason: str, *, may_repeat: bool, pause: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_repeat = may_repeat
        self.pause = pause


def failed_answer(status: int, retry_after: str, message: str) -> AttemptFailed:
    """Makes the failure that an error answer means. `retry_after`: the header's value, empty without one."""
    reason = f"{status} {message}".strip()
    told = float(retry_after) if status in _BUSY and retry_after.isascii() and retry_after.isdigit() else None
    return AttemptFailed(reason, may_repeat=told is not None or status in _AGAIN, pause=told)


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Allows `retries` tries after the first, with pauses that double, jittered; the server's own are as it says."""

    retries: int = 3

    def pause(self, failure: AttemptFailed, n_failures: int, left: float, jitter: float) -> float | None:
        """Returns the seconds to wait before the next try; None: there is none.

        `n_failures`: of this request, this one included, without those whose pause the server told. `left`: seconds
        until its answer is of no use. `jitter`: from 0 to 1.
        """
        if not failure.may_repeat:
            return None
        if failure.pause is not None:
            # Up to half as long again, so that not all come back at once.
            pause = min(failure.pause, MAX_PAUSE) * (1 + jitter / 2)
        elif n_failures > self.retries:
            return None
        else:
            pause = min(_FIRST_PAUSE * 2 ** (n_failures - 1), MAX_PAUSE) * (0.5 + jitter / 2)
        return pause if pause < left else None
