"""Counts what transfers did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from corosrv.images.transfer.states import TransferResult, TransferState

PHASES = {
    TransferState.QUEUED: "queue",
    TransferState.OPENING: "encode",
    TransferState.NEED: "wait_blocks",
    TransferState.FILLING: "fill",
    TransferState.READY: "copy",
}


class IgnoredReason(Enum):
    """Says why a message of the encoder was dropped."""

    LATE = "late"  # of an earlier generation, or of a transfer that has ended
    DUPLICATE = "duplicate"
    EPOCH = "epoch"  # of an encoder process that was reaped
    UNKNOWN = "unknown"  # of a transfer that never was


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Holds the counters at one moment. Times are seconds; histograms count by the number of blocks or rounds."""

    n_free: int
    n_in_use: int
    n_quarantined: int
    n_active: int
    n_queued: int
    staging_bytes: int
    n_rounds: int
    n_rows: int
    grant_blocks: Mapping[int, int]
    rounds_per_item: Mapping[int, int]
    seconds: Mapping[str, float]
    drain_seconds: float
    finished: Mapping[TransferResult, int]
    ignored: Mapping[IgnoredReason, int]
    n_not_finite: int
    n_kills: int


@dataclass
class TransferCounters:
    """Adds up what has happened since the start."""

    n_rounds: int = 0
    n_rows: int = 0
    n_not_finite: int = 0
    n_kills: int = 0
    drain_seconds: float = 0.0
    grant_blocks: Counter[int] = field(default_factory=Counter)
    rounds_per_item: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES.values(), 0.0))
    finished: Counter[TransferResult] = field(default_factory=Counter)
    ignored: Counter[IgnoredReason] = field(default_factory=Counter)

    def add_time(self, state: TransferState, seconds: float) -> None:
        """Adds the time that a transfer has spent in a state."""
        if state is TransferState.DRAINING:
            self.drain_seconds += seconds
        elif state in PHASES:
            self.seconds[PHASES[state]] += seconds

    def snapshot(
        self, *, n_free: int, n_in_use: int, n_quarantined: int, n_active: int, n_queued: int, staging_bytes: int
    ) -> TransferStats:
        """Returns the counters with what is taken now."""
        return TransferStats(
            n_free,
            n_in_use,
            n_quarantined,
            n_active,
            n_queued,
            staging_bytes,
            self.n_rounds,
            self.n_rows,
            dict(self.grant_blocks),
            dict(self.rounds_per_item),
            dict(self.seconds),
            self.drain_seconds,
            dict(self.finished),
            dict(self.ignored),
            self.n_not_finite,
            self.n_kills,
        )
