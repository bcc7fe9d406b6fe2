"""Decides by probes whether an upstream is up: one that fails once may still be well."""

from __future__ import annotations

N_FAILURES = 3  # probes in a row that an upstream falls after
N_SUCCESSES = 2  # probes in a row that one which fell rises after
INTERVAL = 10.0  # seconds between two probes of one that is up
FAST_INTERVAL = 2.0  # between two of one that is not
SHORTEST_INTERVAL = 0.5  # between two, whatever the upstream answers


class ProbeRecord:
    """Remembers how the last probes of an upstream went. The first one that goes well suffices for a new upstream."""

    def __init__(self) -> None:
        self.is_up = False
        self.reason = "not probed yet"  # why it is not up
        self._n_needed = 1  # probes in a row that would change is_up
        self._n_seen = 0

    @property
    def interval(self) -> float:
        """Seconds until the next probe."""
        return INTERVAL if self.is_up else FAST_INTERVAL

    def note(self, failure: str) -> bool:
        """Records a probe, and why it failed; an empty text is a success. Returns whether is_up has changed."""
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
