"""Keeps which requests run in which group, and aborts those of a group. A group is its caller's own."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import GroupAborted, TooManyMembers
from corosrv.base.waits import ThreadLock


class GroupMember:
    """Stands for one request of a group, from its arrival to its answer.

    An abort ends what the request was bound to. The first abort decides whether partial answers are kept.
    """

    __slots__ = ("_cancel", "_leave", "is_aborted", "keeps_partial", "name")

    def __init__(self, name: str, leave: Callable[[GroupMember], None]) -> None:
        self.name = name
        self.is_aborted = False
        self.keeps_partial = False
        self._leave = leave
        self._cancel: Callable[[], None] | None = None

    def bind(self, cancel: Callable[[], None]) -> None:
        """Sets what an abort calls, which must not wait; calls it at once if the group was aborted before."""
        self._cancel = cancel
        if self.is_aborted:
            cancel()

    def abort(self, *, keeps_partial: bool) -> None:
        """Ends the request. Never waits; twice is harmless."""
        if not self.is_aborted:
            self.is_aborted, self.keeps_partial = True, keeps_partial
        if self._cancel is not None:
            self._cancel()

    def error(self) -> GroupAborted:
        """Makes the error that ends the request after an abort."""
        return GroupAborted(self.name)

    def leave(self) -> None:
        """Ends the membership: the request was answered. Twice is harmless."""
        self._cancel = None
        self._leave(self)


MAX_MEMBERS = 100_000  # requests that may be in groups at once

GroupKey = tuple[str, str]  # caller and name


class GroupTable:
    """Keeps the members of all groups; a group is there from its first request to the end of its last.

    Usable from any thread. A group belongs to the caller whose requests named it: others have groups of that name of
    their own, and cannot see this one.
    """

    def __init__(self, max_members: int = MAX_MEMBERS) -> None:
        self._max_members = max_members
        self._members: dict[GroupKey, dict[GroupMember, None]] = {}  # in the order of their arrivals
        self.n_members = 0
        self._lock = ThreadLock()

    @property
    def n_groups(self) -> int:
        return len(self._members)

    def join(self, caller: str, name: str) -> GroupMember:
        """Adds a request to a group, whose `leave` has to be called. Raises TooManyMembers."""
        key = (caller, name)
        member = GroupMember(name, lambda member: self._remove(key, member))
        with self._lock:
            if self.n_members >= self._max_members:
                raise TooManyMembers(self._max_members)
            self._members.setdefault(key, {})[member] = None
            self.n_members += 1
        return member

    def _remove(self, key: GroupKey, member: GroupMember) -> None:
        with self._lock:
            members = self._members.get(key)
            if members is None or member not in members:
                return
            del members[member]
            self.n_members -= 1
            if not members:
                del self._members[key]

    def abort(self, caller: str, name: str, *, keeps_partial: bool) -> int:
        """Ends the requests of a group, and returns how many of the caller's there were. Never waits.

        With `keeps_partial` those that can answer with what there is so far; the others in GroupAborted.
        """
        with self._lock:
            members = list(self._members.get((caller, name), ()))
        for member in members:
            member.abort(keeps_partial=keeps_partial)
        return len(members)
