"""Divides priorities into the bands of the shared queue, and decides which band the next entries come from."""

from __future__ import annotations

from enum import IntEnum

LOW_TURN = 10  # of so many entries that a front reads, one at least is a low one, if there is one


class Band(IntEnum):
    """Lists the bands, in the order in which they are read."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


def band_of(priority: int) -> Band:
    """Returns the band of a priority from 1 to 9."""
    return Band.HIGH if priority <= 3 else Band.NORMAL if priority <= 6 else Band.LOW


class BandTurns:
    """Counts the entries that a front reads, so that low ones get their turn."""

    def __init__(self) -> None:
        self._n_since_low = 0

    def n_low(self, n_entries: int) -> int:
        """Returns how many of the next entries should be low ones, before all others."""
        return (self._n_since_low + n_entries) // LOW_TURN

    def count(self, bands: list[Band]) -> None:
        """Counts entries that were read."""
        n_low = bands.count(Band.LOW)
        self._n_since_low = 0 if n_low else self._n_since_low + len(bands)
