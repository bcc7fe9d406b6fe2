"""Decides what a controller does next: starts, drains and removals. Touches no ray, no socket and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corosrv.fleet.ray.cluster_file import Kind, ProcessGroup
from corosrv.workers.manager.plan import GroupSnapshot, PlaceState, PoolSnapshot, WorkerSnapshot
from corosrv.workers.manager.scaling import Scaler

ROOM_PATIENCE = 30.0  # seconds that a new version waits for room before an old process makes it


class MemberState(str, Enum):
    UNPLACED = "unplaced"  # its actor does not answer: no node has room for it, or one is being found
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"  # its process cannot start, or died; the actor tries again
    DRAINING = "draining"
    GONE = "gone"  # its process has ended as it should


_LIVE = (MemberState.UNPLACED, MemberState.STARTING, MemberState.READY, MemberState.FAILED)


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """An actor as it was last seen. `since`: when it came into this state, in seconds of the caller's clock."""

    id: str
    kind: Kind
    group: str
    version: str
    state: MemberState
    since: float = 0.0


class Step(str, Enum):
    START = "start"
    DRAIN = "drain"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `subject`: a group's key to start one of, otherwise a member's id."""

    step: Step
    subject: str


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """The number of processes of a version that a group should have."""

    key: str
    version: str
    size: int


def plan(targets: Sequence[GroupTarget], members: Sequence[MemberSeen], now: float) -> list[Action]:
    """Returns what brings the members nearer to the targets.

    A new version replaces an old one process by process: it is ready before an old one drains. Where nothing is wanted
    any more the fronts go first, as their calls need the rest.
    """
    actions = [Action(Step.REMOVE, one.id) for one in members if one.state is MemberState.GONE]
    wanted = {target.key for target in targets}
    for target in targets:
        actions += _plan_group(target, [one for one in members if _key(one) == target.key], now)
    unwanted = [one for one in members if _key(one) not in wanted and one.state is not MemberState.GONE]
    fronts = [one for one in unwanted if one.kind is Kind.FRONT]
    actions += [_end(one) for one in (fronts or unwanted) if one.state in _LIVE]
    return actions


def _key(member: MemberSeen) -> str:
    return f"{member.kind.value}:{member.group}"


def _end(member: MemberSeen) -> Action:
    """Ends a member: by a drain, or at once where it has no process."""
    return Action(Step.REMOVE if member.state is MemberState.UNPLACED else Step.DRAIN, member.id)


def _plan_group(target: GroupTarget, members: Sequence[MemberSeen], now: float) -> list[Action]:
    live = [one for one in members if one.state in _LIVE]
    current = [one for one in live if one.version == target.version]
    old = [one for one in live if one.version != target.version]
    useless = [one for one in old if one.state is not MemberState.READY]
    if useless:
        return [_end(one) for one in useless]
    if not old:
        if len(current) < target.size:
            return [Action(Step.START, target.key)] * (target.size - len(current))
        return [_end(one) for one in _by_worth(current)[: len(current) - target.size]]
    if any(one.state is MemberState.DRAINING for one in members):
        return []
    unready = [one for one in current if one.state is not MemberState.READY]
    if len(live) - len(unready) > target.size or _lacks_room(unready, now):
        return [_end(old[0])]
    if unready:
        return []
    return [Action(Step.START, target.key)] * max(1, target.size - len(live))


def _lacks_room(unready: Iterable[MemberSeen], now: float) -> bool:
    return any(one.state is MemberState.UNPLACED and now - one.since >= ROOM_PATIENCE for one in unready)


_WORTH = (MemberState.UNPLACED, MemberState.FAILED, MemberState.STARTING, MemberState.READY)


def _by_worth(members: Iterable[MemberSeen]) -> list[MemberSeen]:
    """Sorts by what a group loses with a member: the least first, and of equal ones the youngest."""
    return sorted(members, key=lambda member: (_WORTH.index(member.state), -member.since))


_PLACES = {
    MemberState.UNPLACED: PlaceState.STARTING,
    MemberState.STARTING: PlaceState.STARTING,
    MemberState.READY: PlaceState.READY,
    MemberState.FAILED: PlaceState.STARTING,
}


class GroupScaler:
    """Decides the size of one group of engines by the rules of pools on one machine. The time is passed in."""

    def __init__(self, size: int) -> None:
        """`size`: how many processes the group has now."""
        self._scaler = Scaler(size)
        self._n_live = 0
        self.reason = ""

    def decide(
        self,
        group: ProcessGroup,
        bounds: tuple[int, int],
        members: Sequence[MemberSeen],
        load: GroupSnapshot,
        now: float,
    ) -> int:
        """Returns how many processes the group should have. Call it once a second or so."""
        least, most = bounds
        live = [one for one in members if one.state in _PLACES]
        if len(live) > self._n_live:
            self._scaler.note_start(now)
        self._n_live = len(live)
        workers = tuple(WorkerSnapshot(one.id, _PLACES[one.state], one.since) for one in live)
        target = self._scaler.decided.target
        seen = PoolSnapshot(group.key, least, most, target, workers=workers, groups=(load,))
        decided = self._scaler.decide(seen, now)
        self.reason = decided.reason
        return decided.target


def load_of(
    group: ProcessGroup, queues: Iterable[Mapping[str, Any]], upstreams: Iterable[Mapping[str, Any]]
) -> GroupSnapshot:
    """Sums up what waits for a group of engines and what it runs, from all fronts' `/v1/queues` and `/workers`.

    `upstreams`: those that are engines of this group.
    """
    engines = list(upstreams)
    ids = {one["id"] for one in engines}
    own = [row for row in queues if ids & set(row["pools"])]
    slots = sum(int(one["concurrency"] or 1) for one in engines)
    return GroupSnapshot(
        group.name,
        slots=max(1, slots // max(1, len({one["url"] for one in engines}))),
        depth=sum(int(row["depth"]) for row in own),
        oldest=max((row["oldest_ms"] or 0.0 for row in own), default=0.0) / 1000,
        service=max((row["service_ewma_ms"] or 0.0 for row in own), default=0.0) / 1000,
        slo=group.slo,
        in_use=sum(int(one["in_flight"]) for one in engines),
    )
