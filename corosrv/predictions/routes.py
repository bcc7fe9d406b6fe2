"""Predictions over HTTP: parse, ask the service, answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from flask import Blueprint, Response, request
from gevent.event import Event as Signal
from werkzeug.exceptions import MethodNotAllowed

from corosrv.errors import BodyTooLarge, ClientGone, NotFound, UnsupportedMedia
from corosrv.http import body as bodies
from corosrv.http import sse
from corosrv.http.client import ClientWatch
from corosrv.http.metrics import HttpStats
from corosrv.http.operation import without_key
from corosrv.http.reply import json_response
from corosrv.predictions import calls, errors, events, headers, shapes
from corosrv.predictions.history import Event
from corosrv.predictions.prediction import Change, Prediction
from corosrv.predictions.service import Found, PredictionService

_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_CANCEL = "/cancel"


def blueprint(
    service: PredictionService,
    stats: HttpStats,
    shut_down: Callable[[], None],
    *,
    has_document: bool = True,
    ping_interval: float = events.PING_SECONDS,
    write_timeout: float = 30.0,
) -> Blueprint:
    """Cog's endpoints over a service. `shut_down` begins to stop the server, and returns at once. `has_document`: the
    predictor's OpenAPI document is here, and not within another one."""
    routes = Blueprint("predictions", __name__)

    @routes.get("/")
    @without_key
    def index() -> Response:
        return json_response(shapes.index(request))

    @routes.get("/health-check")
    @without_key
    def health() -> Response:
        state, error = service.check_health()
        return json_response(shapes.health(state, error, service.worker.setup, service.slots))

    if has_document:

        @routes.get("/openapi.json")
        def document() -> Response:
            return json_response(service.schema.document)

    @routes.post("/predictions")
    def create() -> Response:
        return answer(None)

    # Any path: an id that cannot be one is to be told so, also where it holds a slash.
    @routes.put("/predictions/<path:id>")
    def create_once(id: str) -> Response:
        check_is_no_cancel(id)
        return answer(id)

    @routes.get("/predictions/<path:id>")
    def look_up(id: str) -> Response:
        check_is_no_cancel(id)
        prediction = service.find(id)
        if prediction is None:
            raise NotFound("there is no prediction of this id, or none that is remembered")
        return json_response(prediction.view(with_input=True))

    @routes.post(f"/predictions/<id>{_CANCEL}")
    def cancel(id: str) -> Response:
        return json_response({}, 200 if service.cancel(id) else 404)

    @routes.post("/shutdown")
    def shutdown() -> Response:
        shut_down()
        return json_response({})

    def check_is_no_cancel(path: str) -> None:
        if path.endswith(_CANCEL):
            raise MethodNotAllowed(valid_methods=["POST"])

    def answer(path_id: str | None) -> Response:
        call = calls.parse(*read_body(), path_id, request.headers)
        prediction, found = service.admit(call)
        if call.is_stream and (reader := service.follow(prediction, headers.last_event_id(request.headers))):
            return stream(reader)
        if found is Found.RUNNING:
            return json_response(prediction.view(with_input=True), 202)
        if found is Found.NEW and call.is_async:
            return json_response(prediction.view(), 202)
        return json_response(whole(prediction))

    def read_body() -> tuple[Any, int]:
        """What was sent as JSON, an empty object where nothing was; and how many bytes that were. Waits."""
        kind, limit = request.headers.get("Content-Type", ""), service.settings.max_body
        if (request.content_length or 0) > limit:
            raise BodyTooLarge(limit)
        if kind and not headers.is_json(kind):
            raise UnsupportedMedia("the body must be JSON: its Content-Type has to be application/json")
        sent = bodies.read(request, limit)
        return (bodies.decode(request, sent, _JSON) if sent or kind else {}), len(sent)

    def whole(prediction: Prediction) -> dict[str, Any]:
        """The prediction once it has ended; canceled when its client goes away before that. Waits."""
        if prediction.is_finished:
            return prediction.view()
        is_over = Signal()
        watch = ClientWatch(request.environ, is_over.set)
        prediction.listen(lambda change: is_over.set() if change is Change.COMPLETED else None)
        try:
            is_over.wait()
        finally:
            watch.close()
            if not prediction.is_finished:
                service.cancel(prediction.id)
        if watch.is_gone:
            raise ClientGone("the client left before its prediction had ended")
        return prediction.view()

    def stream(reader: events.EventReader) -> Response:
        answer = sse.response(
            sse.EventStream(
                request.environ,
                reader,
                b"",
                events.encode,
                lambda error: Event("error", {"error": str(error), "skipped": 0}).wire,
                ping_interval,
                write_timeout,
                stats,
            )
        )
        answer.headers["Content-Type"] = "text/event-stream"  # as it is, without a charset
        return answer

    errors.register(routes)
    return routes
