"""Plans which workers to start, drain and evict next, from where the pools stand alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from corosrv.workers.manager.snapshot import HOLDING, Claim, HostSnapshot, PlaceState, PoolSnapshot, WorkerSnapshot

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
