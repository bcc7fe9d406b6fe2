"""The contract of a server's parts, such as its models or its predictor, and their readiness seen as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from flask import Blueprint
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.worker import DecodeStats


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


class Part(HasReadiness, Protocol):
    """One kind of work that a server takes, with its endpoints."""

    def start(self) -> None:
        """Begins to load what the part needs, in the process that will serve; returns at once."""

    def stop(self) -> None:
        """Refuses new work and lets running work end in its time; a second call ends it at once. Never waits."""

    def close(self) -> None:
        """Ends everything; may wait for the step in progress. Twice is harmless."""

    def collectors(self) -> Iterable[Collector]:
        """Returns the part's counters, for /metrics."""

    def blueprints(self) -> Iterable[Blueprint]:
        """Returns the part's routes."""

    def document(self) -> dict[str, Any] | None:
        """Returns the part's own OpenAPI document; None where its routes say everything.

        Raises Unavailable until it is known.
        """

    def has_path(self, path: str) -> bool:
        """Tells whether errors at this path have the part's shape, whether or not there is such a route."""

    def error_body(self, error: CorosrvError, path: str) -> Any:
        """Makes the body of an error of a request to this path, in the shape that its clients expect."""
