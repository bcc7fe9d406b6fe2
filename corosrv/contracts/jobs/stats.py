"""Counters and histograms that parts keep about themselves and return; collectors give them Prometheus' form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Histogram(msgspec.Struct, frozen=True):
    """Observations in seconds; bucket i counts those of at most 0.001 * 2**i, the last one all others."""

    buckets: tuple[int, ...]
    sum: float


class DecodeStats(msgspec.Struct, frozen=True):
    """Counters of the decode loop as of its last step; see corosrv_stats in the C header."""

    tasks_stop: int
    tasks_length: int
    tasks_cancelled: int
    tasks_error: int
    tasks_refused: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    steps: int
    eventfd_writes: int
    readers_polled: int
    preempted: int
    later_tokens: int
    slot_steps: int
    longest_task: int
    step_s: float
    prompt_s: float
    decode_s: float
    slots: int
    running: int
    waiting: int
    paused: int
    readers: int
    cache_entries: int
    cache_bytes: int
    queue_wait: Histogram
    ttft: Histogram
    itl: Histogram


class HasDecodeStats(Protocol):
    """Anything that has a decode loop."""

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None while there is no loop."""


class HasModelStats(Protocol):
    """Anything that has a decode loop for each of several models."""

    def model_stats(self) -> Mapping[str, DecodeStats]:
        """Counters by the model's id, of those that are loaded."""

    def model_states(self) -> Mapping[str, str]:
        """Returns the state of each model, by its id."""
