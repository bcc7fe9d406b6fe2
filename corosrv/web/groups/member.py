"""Stands for one request that is in a group."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import GroupAborted


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
        """Lets an abort call `cancel`, which must not wait; calls it at once if the group was aborted before."""
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
