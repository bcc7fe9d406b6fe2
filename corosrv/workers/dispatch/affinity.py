"""Lets the calls of one session prefer the worker that served it last, and wait for it a little."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HostGroup

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


class SessionTable:
    """Remembers which host served a session last, by the host's id."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[Session, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    def get(self, session: Session) -> str | None:
        return self._hosts.get(session)

    def set(self, session: Session, host_id: str) -> None:
        self._hosts[session] = host_id
        self._hosts.move_to_end(session)
        if len(self._hosts) > MAX_SESSIONS:
            self._hosts.popitem(last=False)


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

    def push(self, call: QueuedCall, now: float) -> None:
        call.local_host = self.host_id
        call.stealable_at = now + STEAL_AFTER
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
