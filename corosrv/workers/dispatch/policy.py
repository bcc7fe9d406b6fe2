"""Chooses which of several workers runs a call: the contract, and what a dispatcher does by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corosrv.workers.dispatch.affinity import SessionTable, session_of
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HostGroup


class Policy(Protocol):
    """Chooses among the workers that serve a call's handler. Belongs to one dispatcher, in the hub's thread.

    Nothing here waits. `prefer` and `choose` may be asked about one call several times, and change nothing that counts.
    """

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        """Returns the group that a call should have although others may be free; None if any will do.

        It is one of the call's entry that takes calls. If it has no free permit, the call waits for it up to
        STEAL_AFTER seconds, unless MAX_LOCAL calls do so already or the call must not wait.
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
        self._sessions = SessionTable()

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        if (session := session_of(call)) is None:
            return None
        host_id = self._sessions.get(session)
        return next((group for group in call.entry.groups if group.host.id == host_id and group.n_permits), None)

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        return groups[0] if len(groups) == 1 else min(groups, key=idleness)

    def note(self, call: QueuedCall, group: HostGroup) -> None:
        if (session := session_of(call)) is not None:
            self._sessions.set(session, group.host.id)

    def forget(self, host_id: str) -> None:
        """Changes nothing: the process that takes the host's place has its id, and its sessions."""


def idleness(group: HostGroup) -> tuple[float, int]:
    """Returns what groups are compared by: the lowest is the least loaded, or of equals the one used longest ago."""
    return group.load, group.turn
