"""Bounds what waits in the queues, and words the refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from corosrv.base.errors import QueueFull

LONGEST_RETRY = 30  # seconds that Retry-After says at most


@dataclass(slots=True)
class QueueBounds:
    """Counts the calls that wait and the bytes of their tensors, over all queues of a front."""

    max_calls: int = 4096
    max_bytes: int = 256 << 20
    n_calls: int = 0
    n_bytes: int = 0

    def problem(
        self, depth: int, max_depth: int, n_bytes: int, n_leaving: int = 0, bytes_leaving: int = 0
    ) -> str | None:
        """Returns why another call of so many bytes cannot wait in a queue of this depth; None if it can.

        `n_leaving`, `bytes_leaving`: calls and bytes that leave before; those of this queue are not in `depth`.
        """
        if depth >= max_depth:
            return f"{depth} calls wait for it, which is the limit"
        if self.n_calls - n_leaving >= self.max_calls:
            return f"{self.n_calls} calls wait here, which is the limit"
        if self.n_bytes - bytes_leaving + n_bytes > self.max_bytes:
            return f"the tensors of waiting calls would exceed {self.max_bytes} bytes"
        return None

    def add(self, n_bytes: int) -> None:
        self.n_calls += 1
        self.n_bytes += n_bytes

    def remove(self, n_bytes: int) -> None:
        self.n_calls -= 1
        self.n_bytes -= n_bytes


def queue_full(name: str, problem: str, wait: float) -> QueueFull:
    """Makes the refusal of a call, which says after how many seconds there should be room. `wait`: predicted."""
    error = QueueFull(f"{name} cannot be queued: {problem}; try again")
    error.retry_after = math.ceil(min(max(wait, 1), LONGEST_RETRY))
    return error
