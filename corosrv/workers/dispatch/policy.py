"""Chooses which of several workers runs a call: the contract, and what a dispatcher does by default.

By default, a call goes to the worker that served its session last, for which it waits a little, and otherwise to the
least loaded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from corosrv.base.errors import SettingsError
from corosrv.base.recent import RecentValues
from corosrv.contracts.idempotency import LIFETIME, MAX_BYTES
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HostGroup


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Bounds the queues of one front. Times are in seconds."""

    max_calls: int = 4096  # that wait, over all keys; how many may wait for one key is its handler's to say
    max_bytes: int = 256 << 20  # of their tensors
    calls_per_caller: int = 0  # that wait and run, of one API key, without those that handlers make; 0: no limit
    longest_start: float = 30.0  # that a call waits for the first worker of its handler
    idempotency_bytes: int = MAX_BYTES  # of answers that are kept under idempotency keys; 0: none are
    idempotency_s: float = LIFETIME  # for which an answer is kept
    n_callers: int = 1  # among whom these bytes are divided
    logs_json: bool = False

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_bytes", "calls_per_caller", "idempotency_bytes"):
            if getattr(self, name) < 0:
                raise SettingsError(f"dispatch.{name} must be at least 0, not {getattr(self, name)}")


MAX_SESSIONS = 10_000  # that are remembered; the one used longest ago is forgotten first
MAX_LOCAL = 4  # calls that wait for one worker
STEAL_AFTER = 0.2  # seconds after which another worker may take such a call

Session = tuple[str, str, str]  # caller, name of the session, key


def session_of(call: QueuedCall) -> Session | None:
    """Returns the session that a call belongs to, if it has one and its handler runs calls one by one."""
    terms = call.job.terms
    if not terms.session or call.entry.batch_limits is not None:
        return None
    return terms.caller, terms.session, call.key


class LocalQueue:
    """Holds the few calls that wait for one worker although others may be free."""

    __slots__ = ("_calls", "host_id")

    def __init__(self, host_id: str) -> None:
        self.host_id = host_id
        self._calls: list[QueuedCall] = []

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[QueuedCall]:
        return iter(self._calls)

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= MAX_LOCAL

    def push(self, call: QueuedCall) -> None:
        call.local_host = self.host_id
        self._calls.append(call)

    def remove(self, call: QueuedCall) -> None:
        self._calls.remove(call)
        call.local_host = None

    def head(self, group: HostGroup, now: float) -> QueuedCall | None:
        """Returns the next call for a group of the worker that they wait for."""
        calls = [call for call in self._calls if call.key in group.entries]
        return min(calls, key=lambda call: call.order(now), default=None)

    def tail(self, group: HostGroup, now: float) -> QueuedCall | None:
        """Returns the call that a group of another worker may steal: the last that has waited long enough."""
        for call in reversed(self._calls):
            if now >= call.stealable_at and call.avoided is not group.host and call.key in group.entries:
                return call
        return None


class Policy(Protocol):
    """Chooses among the workers that serve a call's handler. Belongs to one dispatcher, in the hub's thread.

    Nothing here waits. `prefer` and `choose` may be asked about one call several times, and change nothing that counts.
    """

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        """Returns the group that a call should have although others may be free; None if any will do.

        It is one of the call's entry that takes calls. If it has no free permit, the call waits for it for STEAL_AFTER
        seconds, unless MAX_LOCAL calls do so already or the call must not wait.
        """

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        """Returns which of these groups, one at least, gets a call.

        All of them have a free permit; those for a call that is tried again take calls, now or later.
        """

    def note(self, call: QueuedCall, group: HostGroup) -> None:
        """Learns that a call is handed to a group, whoever chose it; of a batch, the first call."""

    def forget(self, host_id: str) -> None:
        """Learns that a host has left."""


class LeastLoaded(Policy):
    """Prefers the worker that served the call's session last; otherwise the least loaded, and equals in turn."""

    def __init__(self) -> None:
        self._sessions: RecentValues[Session, str] = RecentValues(MAX_SESSIONS)  # the host that served each last

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        if (session := session_of(call)) is None:
            return None
        host_id = self._sessions.get(session)
        return next((group for group in call.entry.groups if group.host.id == host_id and group.n_permits), None)

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        return groups[0] if len(groups) == 1 else min(groups, key=idleness)

    def note(self, call: QueuedCall, group: HostGroup) -> None:
        if (session := session_of(call)) is not None:
            self._sessions.put(session, group.host.id)

    def forget(self, host_id: str) -> None:
        """Changes nothing: the process that takes the host's place has its id, and its sessions."""


def idleness(group: HostGroup) -> tuple[float, int]:
    """Returns what groups are compared by: the lowest is the least loaded, or of equals the one used longest ago."""
    return group.load, group.turn
