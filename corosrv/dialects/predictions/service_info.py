"""Answers about the service itself: its endpoints and its health."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

from flask import Request, current_app
from werkzeug.exceptions import HTTPException

import corosrv
from corosrv.contracts.jobs.setup import Setup
from corosrv.dialects.predictions.health import PredictorHealth, SlotCounts
from corosrv.dialects.predictions.times import rfc3339

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
    return {"cog_version": corosrv.__version__, **urls}


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
    versions = {"corosrv": corosrv.__version__, "python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        versions["coglet"] = metadata.version("coglet")
    return versions
