"""GET /health and /health/live, for probes and people. They answer at once, whatever else goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec
from flask import Blueprint, Response

from corosrv.base.errors import CorosrvError, ModelFailed
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.worker import DecodeStats, HasDecodeStats
from corosrv.web.http.openapi import operation, without_key
from corosrv.web.http.reply import json_response


class Health(msgspec.Struct):
    """The answer while jobs are taken; `busy`: every slot is taken, a new one would wait.

    `redis`: only where servers share one; alone until it has answered for the first time. `images`: only where a model
    takes some; degraded while they are refused because their encoder died too often. `engine`: only where it has a
    process of its own; recovering while another one is started, for which answers wait.
    """

    status: Literal["ok"]
    state: Literal["ready", "busy"]
    redis: Literal["up", "down", "alone"] | None = None
    images: Literal["up", "degraded"] | None = None
    engine: Literal["up", "recovering"] | None = None


class Alive(msgspec.Struct):
    """The answer of a process that answers at all."""

    status: Literal["alive"]


class NotReady(msgspec.Struct):
    """The answer while jobs are refused, with the reason."""

    status: Literal["starting", "failed", "draining"]
    state: str
    error: dict[str, str | None]


class HealthWorker(HasDecodeStats, Protocol):
    """The part of a Worker, or of several, that health needs."""

    @property
    def state(self) -> State: ...

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""


def blueprint(worker: HealthWorker, conditions: Mapping[str, Callable[[], str | None]] | None = None) -> Blueprint:
    """Makes GET /health: 200 when jobs are taken, 503 while it loads, after a failure and while the server ends.

    GET /health/live is 200 in each of these: whoever restarts what does not live must not restart what loads.
    `conditions` tell how `redis`, `images` and `engine` are, or None where there are none. They are shown and change
    nothing else.
    """
    routes = Blueprint("health", __name__)

    @routes.get("/health")
    @routes.get("/v1/health", endpoint="health_v1")
    @operation(
        "Server",
        "Say whether jobs are taken",
        "Answers at once, whatever else goes on, and needs no key.",
        answer=Health,
        error=NotReady,
        statuses=(503,),
    )
    @without_key
    def health() -> Response:
        try:
            worker.check()
        except CorosrvError as error:
            return _unavailable(worker.state, error)
        answer = {"status": "ok", "state": "busy" if _is_busy(worker.stats()) else "ready"}
        shown = {name: state for name, look in (conditions or {}).items() if (state := look()) is not None}
        return json_response(answer | shown)

    @routes.get("/health/live")
    @operation(
        "Server",
        "Say that the server answers",
        "200 also while a model is loaded, could not be loaded, or the server ends. Needs no key.",
        answer=Alive,
    )
    @without_key
    def live() -> Response:
        return json_response({"status": "alive"})

    return routes


def _is_busy(stats: DecodeStats | None) -> bool:
    """Returns whether every slot is taken, so that a new job would wait."""
    return stats is not None and stats.running >= stats.slots


def _unavailable(state: State, error: CorosrvError) -> Response:
    members = {"message": str(error), "type": "unavailable_error", "param": None, "code": None}
    answer = json_response({"status": state.value, "state": state.value, "error": members}, 503)
    if not isinstance(error, ModelFailed):
        answer.headers["Retry-After"] = str(error.retry_after or 1)
    return answer
