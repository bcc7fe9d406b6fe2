"""Schedules requests: when they begin, which process sends them, and which server comes first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def poisson(rate: float, n: int, seed: str) -> list[float]:
    """Returns the seconds at which `n` independent requests arrive, `rate` a second on average."""
    chance = random.Random(seed)
    times: list[float] = []
    seconds = 0.0
    for _ in range(n):
        seconds += chance.expovariate(rate)
        times.append(seconds)
    return times


def in_turn(servers: Sequence[T], number: int) -> list[T]:
    """Returns the servers in the order of round `number`, which alternates so that none is favoured."""
    return list(servers) if number % 2 == 0 else list(reversed(servers))


def share(n: int, part: int, parts: int) -> range:
    """Returns the numbers below `n` that belong to one part; every number belongs to exactly one."""
    return range(part, n, parts)
