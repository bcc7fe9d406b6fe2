"""The values that pools are planned from: where pools, their workers and the host stand at one moment.

A pool has places, each of which one process after the other takes; `check_move` knows their states and moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from corosrv.base.errors import IllegalTransition


class PlaceState(str, Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # gets no new calls, and ends when those that run have ended
    STOPPING = "stopping"  # its process was told to end
    GONE = "gone"  # it has no process, as somebody wanted
    FAILED = "failed"  # its process could not start, or died


NEXT: dict[PlaceState, frozenset[PlaceState]] = {
    PlaceState.STARTING: frozenset({PlaceState.READY, PlaceState.STOPPING, PlaceState.FAILED}),
    PlaceState.READY: frozenset({PlaceState.DRAINING, PlaceState.STOPPING, PlaceState.FAILED}),
    PlaceState.DRAINING: frozenset({PlaceState.STOPPING, PlaceState.FAILED}),
    PlaceState.STOPPING: frozenset({PlaceState.GONE}),
    PlaceState.GONE: frozenset({PlaceState.STARTING}),
    PlaceState.FAILED: frozenset({PlaceState.STARTING}),
}
LIVE = (PlaceState.STARTING, PlaceState.READY)
# A place in one of these states has a process, which takes of the host what its pool claims.
HOLDING = (PlaceState.STARTING, PlaceState.READY, PlaceState.DRAINING, PlaceState.STOPPING)


def check_move(state: PlaceState, next_state: PlaceState) -> None:
    """Raises IllegalTransition for a move that the table does not have."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a place", state, next_state)


LEAST_HOLD = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Claim:
    """Holds what one worker takes of the host. `memory`: bytes."""

    gpus: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Claim) -> Claim:
        return Claim(self.gpus + other.gpus, self.memory + other.memory)

    def __sub__(self, other: Claim) -> Claim:
        return Claim(self.gpus - other.gpus, self.memory - other.memory)

    def __mul__(self, n: int) -> Claim:
        return Claim(self.gpus * n, self.memory * n)

    def fits(self, room: Claim) -> bool:
        """Tells whether the room is enough; fractions of a GPU that add up to one are one."""
        return self.gpus <= room.gpus + 1e-9 and self.memory <= room.memory

    def words(self, claim: Claim) -> str:
        """Describes the parts of this that a claim asks for, as `1 GPU and 512 MB`."""
        parts = [f"{max(self.gpus, 0):g} GPU"] if claim.gpus else []
        if claim.memory:
            parts.append(f"{max(self.memory, 0) / 1e6:.0f} MB")
        return " and ".join(parts)


UNLIMITED = Claim(math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Holds what is asked of the handlers of one pool that share slots, and the slots in use. Times are seconds."""

    name: str  # of its first handler
    slots: int  # of each worker
    depth: int = 0  # calls that wait
    oldest: float = 0.0  # how long the first of them has waited
    service: float = 0.0  # that one call takes; 0: not known yet
    slo: float = 60.0
    in_use: int = 0  # slots of ready workers
    work_done: float = 0.0  # slot seconds of all calls that have ended

    @property
    def work(self) -> float:
        """Seconds of one slot that the waiting calls will take."""
        return self.depth * self.service

    @property
    def patience(self) -> float:
        """Seconds that a call may wait before the pool is too small: half of its time."""
        return self.slo / 2


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """Describes one place of a pool that has a process. Times are seconds of one clock."""

    id: str
    state: PlaceState
    since: float  # when its process was started
    in_flight: int = 0
    idle_since: float | None = None  # None: it is not idle
    is_outgoing: bool = False  # the operator wants it replaced


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Describes one pool. `priority`: 1 is first. Times are seconds."""

    name: str
    least: int
    most: int
    target: int  # how many workers there should be
    workers: tuple[WorkerSnapshot, ...] = ()
    groups: tuple[GroupSnapshot, ...] = ()
    claim: Claim = field(default_factory=Claim)  # of each worker
    priority: int = 5
    cold_start: float = 0.0
    retry_at: float = 0.0  # no start before, because of crashes
    has_crashed: bool = False  # not long ago
    is_crashlooping: bool = False
    target_reason: str = ""

    def count(self, *states: PlaceState) -> int:
        return sum(worker.state in states for worker in self.workers)

    @property
    def ready(self) -> int:
        return self.count(PlaceState.READY)

    @property
    def starting(self) -> int:
        return self.count(PlaceState.STARTING)

    @property
    def live(self) -> int:
        """The number of workers that are ready or will be."""
        return self.count(*LIVE)

    @property
    def depth(self) -> int:
        return sum(group.depth for group in self.groups)

    @property
    def oldest(self) -> float:
        return max((group.oldest for group in self.groups), default=0.0)

    @property
    def hold(self) -> float:
        """Seconds without need for a worker before it goes, and after a start before any worker goes."""
        return max(LEAST_HOLD, 3 * self.cold_start)


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """Describes the host. `elsewhere`: what others than worker processes hold of the budget, such as loaded models."""

    budget: Claim = UNLIMITED
    elsewhere: Claim = field(default_factory=Claim)
