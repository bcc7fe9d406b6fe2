"""Words liveness and readiness for the v2 protocol; the KServe SDK parses them, so they are never empty."""

from __future__ import annotations

import msgspec
from flask import Response

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import ModelStanding
from corosrv.dialects.kserve.metadata import READY
from corosrv.web.http.reply import json_response


class LiveAnswer(msgspec.Struct):
    """Says that the server answers."""

    live: bool


class ReadyAnswer(msgspec.Struct, omit_defaults=True):
    """Says whether the server takes calls; `error` says why not."""

    ready: bool
    live: bool = False
    error: str = ""


class ModelReadyAnswer(msgspec.Struct, omit_defaults=True):
    """Says whether a model takes calls; `error` says why not."""

    name: str
    ready: bool
    error: str = ""


def ready() -> Response:
    return json_response(ReadyAnswer(ready=True, live=True))


def not_ready(error: CorosrvError) -> Response:
    return _with_retry(json_response(ReadyAnswer(ready=False, error=str(error)), 503), error.retry_after)


def model_ready(name: str, standing: ModelStanding | None) -> Response:
    """Answers for a known model, whose standing is None if no worker has it any more."""
    if standing is not None and standing.state == READY:
        return json_response(ModelReadyAnswer(name, ready=True))
    reason = standing.reason if standing is not None else ""
    words = f"the model '{name}' is not ready" + (f": {reason}" if reason else "")
    return _with_retry(json_response(ModelReadyAnswer(name, ready=False, error=words), 503), 1)


def _with_retry(answer: Response, seconds: int | None) -> Response:
    if seconds is not None:
        answer.headers["Retry-After"] = str(seconds)
    return answer
