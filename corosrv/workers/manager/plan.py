"""Plans which workers to start, drain and evict next, from where pools, their workers and the host stand at one moment.

A pool has places, each of which one process after the other takes; `check_move` knows their states and moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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


STARTS_AT_ONCE = 2  # per host
TICK = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class DrainAction:
    """Ends a worker when its calls have ended."""

    pool: str
    worker: str
    reason: str
    makes_room_for: str = ""  # another pool


@dataclass(frozen=True, slots=True)
class StartAction:
    """Starts a worker in a free place of a pool."""

    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Holds what to do now, why each pool is as it is, and when to plan again at the latest."""

    starts: tuple[StartAction, ...] = ()
    drains: tuple[DrainAction, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)  # by pool
    next_at: float = 0.0


def plan(pools: Iterable[PoolSnapshot], host: HostSnapshot, now: float) -> HostPlan:
    """Brings each pool closer to its target, as far as the budget goes, the first priority first.

    A worker that is to be replaced is drained when its replacement is ready, or at once if there is no room for both.
    """
    ordered = sorted(pools, key=lambda pool: (pool.priority, pool.live > 0, -pool.oldest))
    planning = _Planning(ordered, host, now)
    for pool in ordered:
        planning.shrink(pool)
    for pool in ordered:
        planning.grow(pool)
    return planning.result()


class _Planning:
    """Makes the plan, and counts the room that is left of the host."""

    def __init__(self, pools: Sequence[PoolSnapshot], host: HostSnapshot, now: float) -> None:
        self._pools = pools
        self._budget = host.budget
        self._now = now
        self._room = host.budget - host.elsewhere - _sum(pool.claim * pool.count(*HOLDING) for pool in pools)
        self._coming = _sum(
            pool.claim * pool.count(PlaceState.DRAINING, PlaceState.STOPPING) for pool in pools
        )  # fmt: skip
        # A pool whose workers crash starts one at a time, and takes no turn from the others.
        self._n_starting = sum(pool.starting for pool in pools if not pool.has_crashed)
        self._starts: list[StartAction] = []
        self._drains: list[DrainAction] = []
        self._drained: set[str] = set()
        self._reasons = {pool.name: pool.target_reason for pool in pools}

    def result(self) -> HostPlan:
        retries = [pool.retry_at for pool in self._pools if self._now < pool.retry_at and _lacks(pool)]
        next_at = min([self._now + TICK, *retries])
        return HostPlan(tuple(self._starts), tuple(self._drains), self._reasons, next_at)

    # Fewer.

    def shrink(self, pool: PoolSnapshot) -> None:
        """Drains one worker of a pool that has too many, or whose replacement is ready."""
        if pool.count(PlaceState.DRAINING):
            return
        outgoing = _outgoing(pool)
        if outgoing is not None and pool.ready >= pool.target + 1:
            self._drain(pool, outgoing, "its replacement is ready")
        elif outgoing is None and pool.live > pool.target:
            self._drain(pool, _most_idle(pool), pool.target_reason)

    def _drain(self, pool: PoolSnapshot, worker: WorkerSnapshot, reason: str, makes_room_for: str = "") -> None:
        self._drains.append(DrainAction(pool.name, worker.id, reason, makes_room_for))
        self._drained.add(worker.id)
        self._coming += pool.claim

    # More.

    def grow(self, pool: PoolSnapshot) -> None:
        """Starts what a pool lacks, or says why not."""
        for _ in range(_lacks(pool)):
            reason = self._obstacle(pool)
            if reason:
                self._reasons[pool.name] = f"{self._reasons[pool.name]}; {reason}".removeprefix("; ")
                return
            self._room -= pool.claim
            self._n_starting += not pool.has_crashed
            self._starts.append(StartAction(pool.name, pool.target_reason))

    def _obstacle(self, pool: PoolSnapshot) -> str:
        """Returns why no worker of this pool can start now, or nothing. Makes room if that helps."""
        if self._now < pool.retry_at:
            word = "crashlooping: " if pool.is_crashlooping else ""
            return f"{word}the next start is in {pool.retry_at - self._now:.1f} s, because workers have crashed"
        if not pool.claim.fits(self._budget):
            return shortage(pool.claim, self._budget)
        if not pool.claim.fits(self._room):
            return self._make_room(pool)
        if pool.has_crashed and (pool.starting or sum(start.pool == pool.name for start in self._starts)):
            return "one start at a time, because workers have crashed"
        if not pool.has_crashed and self._n_starting >= STARTS_AT_ONCE:
            return f"{STARTS_AT_ONCE} workers of this host are starting already"
        return ""

    def _make_room(self, pool: PoolSnapshot) -> str:
        outgoing = _outgoing(pool)
        if outgoing is not None and not pool.count(PlaceState.DRAINING) and outgoing.id not in self._drained:
            self._drain(pool, outgoing, "there is no room for its replacement beside it")
            return "a worker ends before its replacement starts, because there is no room for both"
        victims = self._victims(pool)
        if victims is None:
            return f"a worker needs {pool.claim.words(pool.claim)}, and {self._room.words(pool.claim)} are free"
        for victim_pool, victim in victims:
            self._drain(victim_pool, victim, f"it makes room for the pool {pool.name}", pool.name)
        # What comes is this pool's; what is free already stays for it as well.
        self._room -= pool.claim
        self._coming -= pool.claim
        return f"room is being made for {pool.claim.words(pool.claim)}"

    def _victims(self, pool: PoolSnapshot) -> list[tuple[PoolSnapshot, WorkerSnapshot]] | None:
        """Returns workers whose end makes enough room, the fewest that do; None if there are not enough."""
        room = self._room + self._coming
        victims: list[tuple[PoolSnapshot, WorkerSnapshot]] = []
        for candidate in self._idle_workers(pool.priority):
            if pool.claim.fits(room):
                break
            victims.append(candidate)
            room += candidate[0].claim
        return victims if pool.claim.fits(room) else None

    def _idle_workers(self, priority: int) -> list[tuple[PoolSnapshot, WorkerSnapshot]]:
        """Returns idle workers that pools of a lower priority can spare, the lowest and the longest idle first."""
        spare = []
        for pool in self._pools:
            if pool.priority <= priority or pool.depth:
                continue
            n_spare = pool.live - pool.least - sum(drain.pool == pool.name for drain in self._drains)
            idle = [
                (worker.idle_since, pool, worker)
                for worker in pool.workers
                if worker.state is PlaceState.READY and worker.id not in self._drained
                and worker.idle_since is not None and self._now - worker.idle_since >= pool.hold
            ]  # fmt: skip
            spare += sorted(idle, key=lambda entry: entry[0])[: max(n_spare, 0)]
        spare.sort(key=lambda entry: (-entry[1].priority, entry[0]))
        return [(pool, worker) for _, pool, worker in spare]


def shortage(claim: Claim, budget: Claim) -> str:
    """Explains why a worker with this claim can never start on a host with this budget."""
    return f"a worker needs {claim.words(claim)}, and the host may give {budget.words(claim)}"


def _lacks(pool: PoolSnapshot) -> int:
    """Returns how many workers a pool should start; one more than its target where one is to be replaced."""
    return max(0, pool.target + (_outgoing(pool) is not None) - pool.live)


def _outgoing(pool: PoolSnapshot) -> WorkerSnapshot | None:
    """Returns the worker whose turn it is to be replaced: one after the other."""
    return next((worker for worker in pool.workers if worker.is_outgoing and worker.state is PlaceState.READY), None)


def _most_idle(pool: PoolSnapshot) -> WorkerSnapshot:
    """Returns the worker whose end costs least: one that is not ready yet, or has the fewest calls."""
    live = [worker for worker in pool.workers if worker.state in (PlaceState.STARTING, PlaceState.READY)]
    return min(live, key=lambda worker: (worker.state is PlaceState.READY, worker.in_flight, -worker.since))


def _sum(claims: Iterable[Claim]) -> Claim:
    return sum(claims, Claim())
