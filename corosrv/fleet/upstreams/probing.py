"""Decides by probes whether an upstream is up: one that fails once may still be well."""

from __future__ import annotations

import math
from collections import deque

N_FAILURES = 3  # probes in a row that an upstream falls after
N_SUCCESSES = 2  # probes in a row that one which fell rises after
INTERVAL = 10.0  # seconds between two probes of one that is up
FAST_INTERVAL = 2.0  # between two of one that is not, or whose last probe failed
SHORTEST_INTERVAL = 0.5  # between two, whatever the upstream answers


class ProbeRecord:
    """Remembers how the last probes of an upstream went. The first one that goes well suffices for a new upstream."""

    def __init__(self) -> None:
        self.is_up = False
        self.reason = "not probed yet"  # why it is not up
        self._n_needed = 1  # probes in a row that would change is_up
        self._n_seen = 0
        self._unanswered: deque[float] = deque(maxlen=N_FAILURES)  # when the last ones began, none of which it answered

    @property
    def interval(self) -> float:
        """Seconds until the next probe."""
        return INTERVAL if self.is_up and not self._n_seen else FAST_INTERVAL

    @property
    def silent_since(self) -> float:
        """Returns since when it seems to be gone with its machine, by the last N_FAILURES probes; -inf if it does not.

        One that refuses connections, or answers whatever it is, is there: calls that it has may still be answered.
        """
        return self._unanswered[0] if len(self._unanswered) == N_FAILURES else -math.inf

    def note(self, failure: str, unanswered_since: float | None = None) -> bool:
        """Records a probe, and why it failed; an empty text is a success. Returns whether is_up has changed.

        `unanswered_since`: when the probe began, if nobody has answered it in any way.
        """
        if unanswered_since is None:
            self._unanswered.clear()
        else:
            self._unanswered.append(unanswered_since)
        if failure or self.is_up:
            self.reason = failure
        if bool(failure) is not self.is_up:  # as before
            self._n_seen = 0
            return False
        self._n_seen += 1
        if self._n_seen < self._n_needed:
            return False
        self.is_up = not self.is_up
        self._n_seen = 0
        self._n_needed = N_FAILURES if self.is_up else N_SUCCESSES
        if self.is_up:
            self.reason = ""
        return True
