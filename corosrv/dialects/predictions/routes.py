"""Cog's endpoints over a service: one function each."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, request
from werkzeug.exceptions import MethodNotAllowed

from corosrv.base.errors import NotFound
from corosrv.dialects.predictions import errors, events, service_info
from corosrv.dialects.predictions.endpoint import PredictionEndpoint
from corosrv.dialects.predictions.service import PredictionService
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.keyed_answers import KeyedAnswers
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.openapi import without_key
from corosrv.web.http.reply import encoded_response, json_response, register_errors

_CANCEL = "/cancel"
_CANCEL_METHODS = ["POST", "PUT"]
_SHAPING = ("Accept", "Prefer", "Last-Event-ID")  # headers that change the form of an answer


def blueprint(
    service: PredictionService,
    stats: HttpStats,
    shut_down: Callable[[], None],
    bodies: BodyReader,
    *,
    has_document: bool = True,
    ping_interval: float = events.PING_SECONDS,
    write_timeout: float = 30.0,
    answers: KeyedAnswers | None = None,
) -> Blueprint:
    """Cog's endpoints over a service. `shut_down` begins to stop the server, and returns at once. `has_document`: the
    predictor's OpenAPI document is here, and not within another one. `answers`: those kept under idempotency keys."""
    routes = Blueprint("predictions", __name__)
    once = (answers or KeyedAnswers(bodies)).once(service.settings.max_body, _SHAPING)
    desk = PredictionEndpoint(service, stats, bodies, ping_interval, write_timeout)

    @routes.get("/")
    @without_key
    def index() -> Response:
        return json_response(service_info.index(request))

    @routes.get("/health-check")
    @without_key
    def health() -> Response:
        state, error = service.check_health()
        return json_response(service_info.health(state, error, service.worker.setup, service.slots))

    if has_document:

        @routes.get("/openapi.json")
        def document() -> Response:
            return json_response(service.schema.document)

    @routes.post("/predictions")
    @once
    def create() -> Response:
        return desk.answer(None)

    # Any path: an id that cannot be one is to be told so, also where it holds a slash.
    @routes.put("/predictions/<path:id>")
    def create_once(id: str) -> Response:
        _check_is_no_cancel(id)
        return desk.answer(id)

    @routes.get("/predictions/<path:id>")
    def look_up(id: str) -> Response:
        _check_is_no_cancel(id)
        prediction = service.find(id)
        if prediction is None:
            raise NotFound("no prediction with this id runs, or ended lately enough to be remembered")
        return encoded_response(prediction.encoded(with_input=True))

    # POST as with Cog, PUT as its documents say.
    @routes.route(f"/predictions/<id>{_CANCEL}", methods=_CANCEL_METHODS)
    def cancel(id: str) -> Response:
        return json_response({}, 200 if service.cancel(id) else 404)

    @routes.delete("/predictions/<path:id>")
    def delete(id: str) -> Response:
        _check_is_no_cancel(id)
        return cancel(id)

    @routes.post("/shutdown")
    def shutdown() -> Response:
        shut_down()
        return json_response({})

    register_errors(routes, errors.body)
    return routes


def _check_is_no_cancel(path: str) -> None:
    if path.endswith(_CANCEL):
        raise MethodNotAllowed(valid_methods=_CANCEL_METHODS)
