"""Remembers which size of a pool was too small, and for what load, so that it is not tried over and over."""

from __future__ import annotations

from collections.abc import Sequence

SPARSE = 0.1  # of the slots of a size that was too small: with so few in use it is tried again
LONGEST_HOLD = 3600.0  # seconds


class SizeHistory:
    """Keeps the largest size whose slots were all there and not enough.

    It may be tried again when the load has halved, and each time that it proves too small again, after twice as long.
    Loads are slots in use on average, by group.
    """

    def __init__(self) -> None:
        self._size = 0
        self._limits: tuple[float, ...] = ()  # loads at most for which it is tried again
        self._n_proofs = 0
        self._is_tried = False

    def add_proof(self, size: int, loads: Sequence[float], slots: Sequence[int]) -> None:
        """Records that a size is too small. `slots`: those of one worker, by group. Repeating it changes nothing."""
        if size == self._size and not self._is_tried:
            return
        self._n_proofs = self._n_proofs + 1 if self._is_tried and size <= self._size else 1
        self._size, self._is_tried = size, False
        self._limits = tuple(max(load / 2, SPARSE * size * n) for load, n in zip(loads, slots, strict=True))

    def hold(self, size: int, seconds: float) -> float:
        """Returns for how long the load has to be low before the pool may go down to this size."""
        if size > self._size:
            return seconds
        return max(seconds, min(seconds * 2.0 ** (self._n_proofs - 1), LONGEST_HOLD))

    def allows(self, size: int, loads: Sequence[float]) -> bool:
        """Tells whether a size may be tried with these loads."""
        if size > self._size or len(loads) != len(self._limits):
            return True
        return all(load <= limit for load, limit in zip(loads, self._limits, strict=True))

    def note_try(self, size: int) -> None:
        """Records that the pool goes down to this size."""
        self._is_tried = self._is_tried or size <= self._size
