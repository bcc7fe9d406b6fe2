"""Remembers one pool between two looks of the planning: its limits, size, crashes and start times."""

from __future__ import annotations

from dataclasses import dataclass, field

from corosrv.workers.manager.crashes import CrashRecord
from corosrv.workers.manager.scaling import Scaler
from corosrv.workers.manager.snapshot import Claim, GroupSnapshot, PoolSnapshot, WorkerSnapshot

COLD_START = 5.0  # seconds, as long as nothing is declared and nothing was measured
_NEW_SHARE = 0.3  # of the last start in the average of all


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """Holds what the author and the operator say about a pool. `cold_start`: seconds; None: it is measured."""

    name: str
    least: int
    most: int
    claim: Claim = field(default_factory=Claim)
    priority: int = 5
    cold_start: float | None = None


class PoolMemory:
    """Remembers one pool, and says where it stands. The caller passes the current time in; nothing waits."""

    def __init__(self, terms: PoolTerms, crashes: CrashRecord | None = None) -> None:
        self.name = terms.name
        self.claim = terms.claim
        self.priority = terms.priority
        self.least, self.most = terms.least, terms.most
        self.crashes = crashes or CrashRecord()
        self._declared = terms.cold_start
        self._measured: float | None = None
        self._scaler = Scaler(terms.least)

    @property
    def cold_start(self) -> float:
        """Seconds from a start until the worker is ready: measured, else declared."""
        if self._measured is not None:
            return self._measured
        return COLD_START if self._declared is None else self._declared

    @property
    def patience(self) -> float:
        """Seconds that a call may wait for the first worker of an empty pool."""
        return 3 * self.cold_start + 10

    @property
    def target(self) -> int:
        return self._scaler.decided.target

    def set_limits(self, least: int, most: int) -> None:
        """Sets how many workers there may be; the next look brings the pool there."""
        self.least, self.most = least, most

    def note_start(self, now: float) -> None:
        """Records that a worker was started."""
        self._scaler.note_start(now)

    def note_ready(self, seconds: float) -> None:
        """Records how long a worker took to start."""
        last = self._measured
        self._measured = seconds if last is None else last + _NEW_SHARE * (seconds - last)

    def note_eviction(self, pool: str) -> None:
        """Records that a worker ends to make room for another pool."""
        self._scaler.note_eviction(pool)

    def stand(
        self, workers: tuple[WorkerSnapshot, ...], groups: tuple[GroupSnapshot, ...], now: float
    ) -> PoolSnapshot:  # fmt: skip
        """Decides the pool's target, and returns where it stands. Call it once a second."""
        standing = self._standing(workers, groups)
        self._scaler.decide(standing, now)
        return self._standing(workers, groups)

    def _standing(self, workers: tuple[WorkerSnapshot, ...], groups: tuple[GroupSnapshot, ...]) -> PoolSnapshot:
        decided = self._scaler.decided
        return PoolSnapshot(
            self.name,
            self.least,
            self.most,
            decided.target,
            workers,
            groups,
            self.claim,
            self.priority,
            self.cold_start,
            self.crashes.retry_at,
            self.crashes.has_crashed,
            self.crashes.is_looping,
            decided.reason,
        )
