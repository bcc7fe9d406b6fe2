"""A Flask app with the v2 endpoints over functions, as a server wires them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from corosrv.app import _words
from corosrv.base.errors import HttpError
from corosrv.dialects.kserve import routes, schema
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import LeanFlask
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.sse import StreamLimits
from tests.dialects.kserve.generator_worker import GeneratorWorker

MAX_BODY = 1 << 20


def make_app(
    worker: GeneratorWorker,
    check_ready: Callable[[], None] = lambda: None,
    max_body_bytes: int = MAX_BODY,
    **options: Any,
) -> Flask:
    app = LeanFlask("kserve")
    bodies = BodyReader()
    streams = StreamLimits(HttpStats(), **options)
    app.register_blueprint(routes.blueprint(worker, bodies, max_body_bytes, streams, check_ready=check_ready))

    def http_error(error: HTTPException) -> Response:
        assert schema.has_path(request.path)
        answer = schema.answer_error(HttpError(error.code or 500, _words(error)))
        for name, value in error.get_headers():
            if name not in ("Content-Type", "Content-Length"):
                answer.headers[name] = value
        return answer

    app.register_error_handler(HTTPException, http_error)
    app.teardown_request(lambda error: bodies.release(request))
    return app
