"""The controller: a detached actor that keeps the members of a cluster as its file wants them.

It holds nothing that it could not find again: what is wanted is in Ray's key-value store, and members are actors with
names. So it may die and start anew at any time, and members serve without it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corosrv.base import __version__
from corosrv.base.errors import ManagementError, SettingsError
from corosrv.fleet.ray.cluster_file import Kind, ProcessGroup, convert, groups_of
from corosrv.fleet.ray.members import KEY_VARIABLE, ClusterSecrets, call
from corosrv.fleet.ray.placement import ActorSpace, missing_words
from corosrv.fleet.ray.plan import Action, GroupScaler, GroupTarget, MemberSeen, MemberState, Step, load_of, plan

log = logging.getLogger("corosrv.ray")

TICK = 1.0  # seconds between two looks at the members
FIRST_ANSWER_TIME = 20.0
ANSWER_TIME = 2.0  # seconds that a look waits for members; the answers of slow ones come with a later look
STALE_TIME = 15.0  # seconds before an upstream is removed that no engine claims
STATE_KEY = b"wanted"


class WantedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that survives a controller: the file's values, bounds set since by hand, and the cluster's secrets."""

    values: dict[str, Any]
    bounds: dict[str, tuple[int, int]] = {}
    token: str
    engine_key: str
    is_down: bool = False


@dataclass
class _Tracked:
    """A member's actor, as this controller has seen it so far."""

    handle: Any
    kind: Kind
    group: str
    version: str
    state: MemberState = MemberState.UNPLACED
    since: float = field(default_factory=time.monotonic)
    status: dict[str, Any] = field(default_factory=dict)
    question: Any = None  # a call of `status` that is not answered yet


class Controller:
    """Holds the wanted state and compares. Its thread starts, connects, drains and removes members."""

    def __init__(self) -> None:
        self._space = ActorSpace()
        self._lock = threading.Lock()
        self._members: dict[str, _Tracked] = {}
        self._scalers: dict[str, GroupScaler] = {}
        self._sizes: dict[str, int] = {}
        self._unclaimed: dict[str, float] = {}  # URLs of upstreams that no engine claims, since when
        self._fault = ""
        self._is_first = True
        stored = self._space.load(STATE_KEY)
        self._wanted = msgspec.json.decode(stored, type=WantedState) if stored else None
        threading.Thread(target=self._work, name="corosrv-controller", daemon=True).start()

    # Calls of the commands.

    def version(self) -> str:
        return __version__

    def apply(self, values: dict[str, Any]) -> None:
        """Wants what a cluster file says from now on; bounds set by hand end. Raises SettingsError."""
        convert(values, "sent")
        with self._lock:
            known = self._wanted
            token = known.token if known else secrets.token_urlsafe(32)
            engine_key = known.engine_key if known else secrets.token_urlsafe(32)
            self._store(WantedState(values=values, token=token, engine_key=engine_key))

    def scale(self, name: str, least: int, most: int) -> None:
        """Sets a group's bounds until the next file is applied. Raises SettingsError."""
        with self._lock:
            found = [group for group in self._groups() if group.name == name and group.kind is not Kind.FRONT]
            if not found:
                names = ", ".join(group.name for group in self._groups() if group.kind is not Kind.FRONT)
                raise SettingsError(f"there are no engines or pools {name!r}, but {names or 'none'}")
            if found[0].kind is Kind.POOL and least != most:
                raise SettingsError(f"{name} is a pool, which is scaled by hand: name one number")
            assert self._wanted is not None
            bounds = self._wanted.bounds | {group.key: (least, most) for group in found}
            self._store(msgspec.structs.replace(self._wanted, bounds=bounds))

    def down(self) -> None:
        """Wants nothing any more."""
        with self._lock:
            if self._wanted is not None:
                self._store(msgspec.structs.replace(self._wanted, is_down=True))

    def status(self) -> dict[str, Any]:
        """Returns the groups and members, and why those wait that do."""
        with self._lock:
            room = self._space.room()
            groups = [self._group_view(group) for group in self._groups()]
            keys = {group.key: group for group in self._groups()}
            members = []
            for name, one in sorted(self._members.items()):
                reason = one.status.get("reason", "")
                if one.state is MemberState.UNPLACED and (group := keys.get(f"{one.kind.value}:{one.group}")):
                    reason = missing_words(group.section, *room)
                shown = {"id": name, "kind": one.kind.value, "group": one.group, "version": one.version}
                facts = {key: one.status.get(key) for key in ("url", "host", "pid", "actor_pid", "restarts")}
                members.append(shown | facts | {"state": one.state.value, "reason": reason})
            about = {"version": __version__, "pid": os.getpid(), "fault": self._fault}
            return about | {"groups": groups, "members": members}

    def _group_view(self, group: ProcessGroup) -> dict[str, Any]:
        least, most = self._bounds(group)
        own = [one for one in self._members.values() if (one.kind, one.group) == (group.kind, group.name)]
        scaler = self._scalers.get(group.key)
        return {
            "kind": group.kind.value,
            "name": group.name,
            "min": least,
            "max": most,
            "target": min(max(self._sizes.get(group.key, least), least), most),
            "ready": sum(one.state is MemberState.READY for one in own),
            "outdated": sum(one.version != group.version for one in own),
            "decision": scaler.reason if scaler and least != most else "",
        }

    def _store(self, state: WantedState) -> None:
        self._space.save(STATE_KEY, msgspec.json.encode(state))
        self._wanted = state

    def _groups(self) -> list[ProcessGroup]:
        wanted = self._wanted
        return [] if wanted is None or wanted.is_down else groups_of(convert(wanted.values, "stored"))

    def _bounds(self, group: ProcessGroup) -> tuple[int, int]:
        assert self._wanted is not None
        return self._wanted.bounds.get(group.key, (group.least, group.most))

    # The thread.

    def _work(self) -> None:
        while True:
            try:
                self._tick()
                self._fault = ""
            except Exception as error:  # Ray's own, as while its head restarts: the next look may succeed
                log.warning("a look at the members failed: %s", error)
                self._fault = f"{type(error).__name__}: {error}"
            time.sleep(TICK)

    def _tick(self) -> None:
        self._look()
        fronts = sorted(one.status["management"] for one in self._ready(Kind.FRONT))
        self._connect(fronts)
        queues, upstreams = self._ask_fronts(fronts)
        with self._lock:
            groups, now = self._groups(), time.monotonic()
            seen = [self._view(name, one) for name, one in self._members.items()]
            targets = [self._target(group, seen, queues, upstreams, now) for group in groups]
            actions = plan(targets, seen, now)
            for action in actions:
                self._do(action, {group.key: group for group in groups})

    def _look(self) -> None:
        """Asks each member how it is. Waits."""
        found = self._space.members()
        with self._lock:
            for name in self._members.keys() - found.keys():
                del self._members[name]
            for name, (kind, group, version, handle) in found.items():
                self._members.setdefault(name, _Tracked(handle, kind, group, version))
            asked = dict(self._members)
        for one in asked.values():
            if one.question is None:
                one.question = one.handle.status.remote()
        # The first look takes its time: a member that it does not know yet must not count as one that has no process.
        seconds = FIRST_ANSWER_TIME if self._is_first else ANSWER_TIME
        answers = self._space.answers([one.question for one in asked.values()], seconds)
        self._is_first = False
        for one, answer in zip(asked.values(), answers, strict=True):
            if answer is None:  # not placed yet, or slow: then it is as it was
                continue
            one.question = None
            if isinstance(answer, Mapping):
                _enter(one, MemberState(answer["state"]), dict(answer))
            else:  # the actor is being started anew, on this node or another
                _enter(one, MemberState.UNPLACED, {})

    def _ready(self, kind: Kind) -> list[_Tracked]:
        return [one for one in self._members.values() if one.kind is kind and one.state is MemberState.READY]

    def _connect(self, fronts: list[str]) -> None:
        """Tells engines of all fronts, and each worker of a pool of one: that which has the fewest."""
        if not fronts:
            return
        loads = dict.fromkeys(fronts, 0)
        lost = []
        for one in self._members.values():
            known = one.status.get("fronts")
            if known is None or one.kind is Kind.FRONT:
                continue
            if one.kind is Kind.ENGINE and known != fronts:
                one.handle.connect.remote(fronts)
            elif one.kind is Kind.POOL and known and known[0] in loads:
                loads[known[0]] += 1
            elif one.kind is Kind.POOL:
                lost.append(one)
        for one in lost:
            front = min(loads, key=lambda url: loads[url])
            loads[front] += 1
            one.handle.connect.remote([front])

    def _ask_fronts(self, fronts: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Returns the queues of all fronts and the engines among their upstreams. Waits. Removes lost engines."""
        queues: list[dict[str, Any]] = []
        upstreams: list[dict[str, Any]] = []
        claimed = {one.status.get("url") for one in self._members.values() if one.kind is Kind.ENGINE}
        now, unclaimed = time.monotonic(), {}
        token = self._wanted.token if self._wanted else ""
        for front in fronts:
            try:
                queues += call("GET", f"{front}/v1/queues", token)["queues"]
                own = [one for one in call("GET", f"{front}/workers", token)["workers"] if _is_engine(one)]
                upstreams += own
                for one in own:
                    if one["url"] not in claimed and one["state"] != "draining":
                        place = f"{front} {one['url']}"
                        unclaimed[place] = self._unclaimed.get(place, now)
                        if now - unclaimed[place] > STALE_TIME:
                            call("DELETE", f"{front}/workers/{one['id']}?mode=drain", token)
            except ManagementError as error:
                log.info("a front does not answer: %s", error)
        self._unclaimed = unclaimed
        return queues, upstreams

    def _view(self, name: str, member: _Tracked) -> MemberSeen:
        return MemberSeen(name, member.kind, member.group, member.version, member.state, member.since)

    def _target(
        self,
        group: ProcessGroup,
        members: Sequence[MemberSeen],
        queues: list[dict[str, Any]],
        upstreams: list[dict[str, Any]],
        now: float,
    ) -> GroupTarget:
        least, most = self._bounds(group)
        size = least
        own = [one for one in members if (one.kind, one.group) == (group.kind, group.name)]
        if group.kind is Kind.ENGINE and least < most:
            urls = {self._members[one.id].status.get("url") for one in own}
            load = load_of(group, queues, [one for one in upstreams if one["url"] in urls])
            scaler = self._scalers.setdefault(group.key, GroupScaler(max(least, sum(map(_is_live, own)))))
            size = scaler.decide(group, (least, most), own, load, now)
        else:
            self._scalers.pop(group.key, None)
        self._sizes[group.key] = size
        return GroupTarget(group.key, group.version, size)

    def _do(self, action: Action, groups: Mapping[str, ProcessGroup]) -> None:
        log.info("%s %s", action.step.value, action.subject)
        if action.step is Step.START:
            assert self._wanted is not None
            shared = ClusterSecrets(self._wanted.token, self._wanted.engine_key)
            values = convert(self._wanted.values, "stored")
            self._space.start(groups[action.subject], values.listen, shared, is_joinable=bool(values.pools))
            return
        one = self._members[action.subject]
        if action.step is Step.DRAIN:
            one.handle.drain.remote()
            _enter(one, MemberState.DRAINING, one.status)
        else:
            self._space.remove(one.handle)


def _enter(member: _Tracked, state: MemberState, status: dict[str, Any]) -> None:
    if state is not member.state:
        member.state, member.since = state, time.monotonic()
    member.status = status


def _is_live(member: MemberSeen) -> bool:
    return member.state in (MemberState.STARTING, MemberState.READY)


def _is_engine(upstream: Mapping[str, Any]) -> bool:
    return bool(upstream["api_key_env"] == KEY_VARIABLE)
