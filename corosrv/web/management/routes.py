"""Makes the management API over HTTP of what a server's parts say can be managed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import HTTPException

from corosrv import __version__
from corosrv.base.errors import CorosrvError, Refused
from corosrv.contracts.jobs import State

MAX_BODY = 65_536  # bytes

Body = TypeVar("Body")


def make_app(
    find_state: Callable[[], State], apis: Sequence[Blueprint], check: Callable[[], None] = lambda: None
) -> Flask:
    """Makes the API of these blueprints, each named after what it manages.

    `find_state`: returns the state of what is managed. `check` raises for a request that may not pass.
    """
    app = Flask("corosrv.management", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.url_map.merge_slashes = False  # keys of queues may have several in a row
    app.before_request(check)
    app.register_error_handler(CorosrvError, _render)
    app.register_error_handler(HTTPException, _render_http)
    for api in apis:
        app.register_blueprint(api)
    started_at = time.monotonic()

    @app.get("/v1/server")
    def server() -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": __version__,
            "state": find_state().value,
            "uptime_ms": round((time.monotonic() - started_at) * 1000),
            "manages": [api.name for api in apis],
        }

    return app


def decode_body(kind: type[Body]) -> Body:
    """Reads the request's body. Raises Refused, which names the field at fault."""
    try:
        return msgspec.json.decode(request.get_data(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body is wrong: {error}") from None


def _render(error: CorosrvError) -> tuple[dict[str, Any], int]:
    return {"error": str(error)}, error.status


def _render_http(error: HTTPException) -> Response:
    answer = Response(msgspec.json.encode({"error": error.description}), error.code, mimetype="application/json")
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            answer.headers[name] = value
    return answer
