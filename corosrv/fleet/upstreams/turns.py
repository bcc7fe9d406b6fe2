"""Gives turns in proportion to weights."""

from __future__ import annotations


class WeightedTurns:
    """Keeps a place on one line for each upstream, which moves on by 1 / weight with every turn: the lowest is next.

    An upstream that could not take its turns for a while has lost them: it starts again where the others are.
    """

    def __init__(self) -> None:
        self._places: dict[str, float] = {}  # by the upstream's id
        self._front = 0.0  # the furthest place from which a turn was taken

    def __len__(self) -> int:
        """Returns the number of upstreams that have taken turns and are not forgotten."""
        return len(self._places)

    def place(self, upstream: str) -> float:
        return max(self._places.get(upstream, 0.0), self._front)

    def take(self, upstream: str, weight: float) -> None:
        """Records that an upstream has taken a turn."""
        self._front = self.place(upstream)
        self._places[upstream] = self._front + 1 / weight

    def forget(self, upstream: str) -> None:
        self._places.pop(upstream, None)
