"""When requests begin, which of them a process sends, and which server comes first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def poisson(rate: float, n: int, seed: str) -> list[float]:
    """Seconds from the beginning at which `n` requests arrive that know nothing of each other, `rate` a second."""
    chance = random.Random(seed)
    times: list[float] = []
    now = 0.0
    for _ in range(n):
        now += chance.expovariate(rate)
        times.append(now)
    return times


def in_turn(servers: Sequence[T], number: int) -> list[T]:
    """The servers in the order of round `number`: who went first goes last in the next, so that none is favoured."""
    return list(servers) if number % 2 == 0 else list(reversed(servers))


def share(n: int, part: int, parts: int) -> range:
    """Which of `n` numbers belong to one part; every number belongs to exactly one."""
    return range(part, n, parts)
