"""Limits, counters and the trace of transfers.

The trace has the last steps, for tests and for the log of a fault.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum

from corosrv.base.errors import SettingsError
from corosrv.images.transfer.session import TransferResult, TransferState

MAX_EVENTS = 4096  # the oldest go


class TraceKind(Enum):
    OPEN = "open"
    ALLOCATE = "allocate"
    GRANT = "grant"
    COPY = "copy"
    FREE = "free"
    CLOSE = "close"
    CANCEL = "cancel"
    QUARANTINE = "quarantine"
    END = "end"  # as the client sees it
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Records one step of a transfer, or the wish that the encoder of an epoch be killed."""

    kind: TraceKind
    rid: int = 0
    tid: int = 0
    gen: int = 0
    blocks: tuple[int, ...] = ()
    epoch: int = 0


class Trace:
    """Keeps the last steps; `n_events` counts all."""

    def __init__(self) -> None:
        self.events: deque[TraceEvent] = deque(maxlen=MAX_EVENTS)
        self.n_events = 0

    def add(self, event: TraceEvent) -> None:
        self.events.append(event)
        self.n_events += 1

    def events_after(self, n_events: int) -> list[TraceEvent]:
        """Returns the steps after the first `n_events`, as far as they are kept."""
        n_new = min(self.n_events - n_events, len(self.events))
        return list(self.events)[len(self.events) - n_new :]


@dataclass(frozen=True, kw_only=True)
class TransferLimits:
    """Says how many transfers run at once, what they may take, and how long each of their steps may last.

    Sizes are rows, blocks or transfers; `staging_budget` is bytes, times are seconds.
    """

    max_blocks_per_round: int = 16
    max_active: int = 4
    max_queued: int = 64
    staging_budget: int = 64 << 20
    max_rows: int = 8191  # of one item
    open_timeout: float = 30.0  # without a description of the item
    round_timeout: float = 10.0  # from a grant to its rows
    drain_timeout: float = 5.0  # from a cancellation to its answer; the encoder is killed then
    deadline: float = 120.0  # from submission to the last row

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.type == "float" and value <= 0:
                raise SettingsError(f"transfer.{limit.name} must be more than 0 seconds, not {value}")
            if limit.type == "int" and value < 1:
                raise SettingsError(f"transfer.{limit.name} must be at least 1, not {value}")


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
