"""The health of the prediction service: a state table, and how it follows from the worker's state and slots.

The answers of the service's index and of GET /health-check are made here.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import metadata
from typing import Any

from flask import Request, current_app
from werkzeug.exceptions import HTTPException

from corosrv.base import __version__
from corosrv.base.errors import IllegalTransition
from corosrv.contracts.jobs.setup import Setup, WorkerState
from corosrv.dialects.predictions.prediction import rfc3339


class PredictorHealth(str, Enum):
    """The values of `status` in GET /health-check."""

    UNKNOWN = "UNKNOWN"  # no predictor is configured
    STARTING = "STARTING"
    READY = "READY"
    BUSY = "BUSY"
    UNHEALTHY = "UNHEALTHY"  # the user's own check failed just now: answered, never stored
    SETUP_FAILED = "SETUP_FAILED"
    DEFUNCT = "DEFUNCT"


NEXT: dict[PredictorHealth, frozenset[PredictorHealth]] = {
    PredictorHealth.UNKNOWN: frozenset(),
    PredictorHealth.STARTING: frozenset({PredictorHealth.READY, PredictorHealth.SETUP_FAILED}),
    PredictorHealth.READY: frozenset({PredictorHealth.BUSY, PredictorHealth.DEFUNCT}),
    PredictorHealth.BUSY: frozenset({PredictorHealth.READY, PredictorHealth.DEFUNCT}),
    PredictorHealth.UNHEALTHY: frozenset(),
    PredictorHealth.SETUP_FAILED: frozenset(),
    PredictorHealth.DEFUNCT: frozenset(),
}


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Counts of all slots, of those that run a prediction, and of those that are out of use for ever."""

    total: int = 0
    busy: int = 0
    poisoned: int = 0

    @property
    def free(self) -> int:
        return self.total - self.busy - self.poisoned


class HealthState:
    """The state of one worker's life; moves along the table and refuses the rest."""

    def __init__(self, state: PredictorHealth = PredictorHealth.STARTING) -> None:
        self.state = state

    def move(self, state: PredictorHealth) -> None:
        """Moves to a state; staying is no move. Raises IllegalTransition."""
        if state is self.state:
            return
        if state not in NEXT[self.state]:
            raise IllegalTransition("the service", self.state, state)
        self.state = state


_OF_WORKER: dict[WorkerState, PredictorHealth] = {
    WorkerState.STARTING: PredictorHealth.STARTING,
    WorkerState.SETUP_FAILED: PredictorHealth.SETUP_FAILED,
    WorkerState.DRAINING: PredictorHealth.DEFUNCT,
    WorkerState.DEFUNCT: PredictorHealth.DEFUNCT,
}
# A worker that was stopped is as good as dead, or was never set up.
_STOPPED: dict[PredictorHealth, PredictorHealth] = {
    PredictorHealth.STARTING: PredictorHealth.SETUP_FAILED,
    PredictorHealth.READY: PredictorHealth.DEFUNCT,
    PredictorHealth.BUSY: PredictorHealth.DEFUNCT,
    PredictorHealth.SETUP_FAILED: PredictorHealth.SETUP_FAILED,
    PredictorHealth.DEFUNCT: PredictorHealth.DEFUNCT,
}


def of_worker(previous: PredictorHealth, worker: WorkerState, slots: SlotCounts) -> PredictorHealth:
    """Returns the service's next health, given its last one."""
    if worker is WorkerState.READY:
        return _of_slots(slots)
    return _STOPPED[previous] if worker is WorkerState.STOPPED else _OF_WORKER[worker]


def _of_slots(slots: SlotCounts) -> PredictorHealth:
    if slots.poisoned == slots.total:
        return PredictorHealth.DEFUNCT
    return PredictorHealth.READY if slots.free else PredictorHealth.BUSY


_URLS = {
    "docs_url": ("GET", "/docs"),
    "openapi_url": ("GET", "/openapi.json"),
    "shutdown_url": ("POST", "/shutdown"),
    "healthcheck_url": ("GET", "/health-check"),
    "predictions_url": ("POST", "/predictions"),
    "predictions_idempotent_url": ("PUT", "/predictions/{prediction_id}"),
    "predictions_cancel_url": ("POST", "/predictions/{prediction_id}/cancel"),
}


def index(request: Request) -> dict[str, str]:
    """Returns the URLs of the endpoints that answer, below the path of this request."""
    prefix = request.path.rstrip("/")
    routes = current_app.url_map.bind("localhost")

    def answers(method: str, path: str) -> bool:
        try:
            return routes.test(prefix + path, method)
        except HTTPException:
            return False

    urls = {
        name: request.script_root + prefix + path for name, (method, path) in _URLS.items() if answers(method, path)
    }
    return {"cog_version": __version__, **urls}


def health(state: PredictorHealth, error: str | None, setup: Setup, slots: SlotCounts) -> dict[str, Any]:
    """Returns the answer of GET /health-check."""
    members: dict[str, Any] = {
        "status": state.value,
        "setup": _setup(setup),
        "version": _versions(),
        "slots": {"total": slots.total, "busy": slots.busy, "poisoned": slots.poisoned},
    }
    if error is not None:
        members["user_healthcheck_error"] = error
    return members


def _setup(setup: Setup) -> dict[str, Any]:
    members: dict[str, Any] = {"status": setup.status, "logs": setup.logs}
    times = {"started_at": setup.started_at, "completed_at": setup.completed_at}
    return members | {name: rfc3339(time) for name, time in times.items() if time is not None}


@cache
def _versions() -> dict[str, str]:
    versions = {"corosrv": __version__, "python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        versions["coglet"] = metadata.version("coglet")
    return versions
