"""A server's parts, seen as one by its health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.stats import DecodeStats


class HasReadiness(Protocol):
    """Something that takes work, or says why not."""

    @property
    def state(self) -> State: ...

    def check(self) -> None:
        """Raises the Unavailable that work would meet now."""

    def stats(self) -> DecodeStats | None: ...


class Readiness:
    """READY if every part is ready, otherwise the state of the first part that is not."""

    def __init__(self, parts: Iterable[HasReadiness]) -> None:
        self._parts = tuple(parts)

    @property
    def state(self) -> State:
        """READY, or the state of the first part that is in another."""
        states = [part.state for part in self._parts]
        return next((state for state in states if state is not State.READY), State.READY)

    def check(self) -> None:
        for part in self._parts:
            part.check()

    def stats(self) -> DecodeStats | None:
        """Counters of the first part's decode loop; None where no part has one."""
        return next((stats for part in self._parts if (stats := part.stats()) is not None), None)
