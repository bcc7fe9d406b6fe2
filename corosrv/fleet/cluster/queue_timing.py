"""Defines how soon the fronts of a shared queue take each other for gone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTiming:
    """Is the same for all fronts of a queue."""

    renew: float = 3.0  # seconds between two times at which a front says what it runs
    claim_ms: int = 15_000  # without a renewal, after which others take an entry
    hold_ms: int = 5_000  # after a restart of Redis, in which fronts say what they still run before anything is read
