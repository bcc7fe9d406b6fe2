"""Cog's endpoints over a service, errors in the shape of predictions, and the service's metrics.

A create request is parsed, handed to the service, and answered in the way that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from flask import Blueprint, Response, request
from gevent.event import Event as Signal
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from werkzeug.exceptions import MethodNotAllowed

from corosrv.base.errors import BodyTooLarge, ClientGone, CorosrvError, InvalidInput, NotFound, UnsupportedMedia
from corosrv.contracts.jobs.terms import TRACE
from corosrv.contracts.metrics import Family, metric
from corosrv.dialects.predictions import health as service_info
from corosrv.dialects.predictions import parse
from corosrv.dialects.predictions.health import PredictorHealth
from corosrv.dialects.predictions.prediction import Change, EventEncoder, EventReader, Prediction, Status
from corosrv.dialects.predictions.service import CallOutcome, PredictionService
from corosrv.web.http import body_reader, sse
from corosrv.web.http.access import came_by_loopback
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.openapi import without_key
from corosrv.web.http.reply import encoded_response, json_response, register_errors
from corosrv.web.kept.keyed_answers import KeyedAnswers, keep_if
from corosrv.web.page import page_for_people

_FAILED = (409, 503)  # these say so in a member of their own


def error_body(error: CorosrvError) -> dict[str, Any]:
    """Makes `{"detail": [...]}` where fields are at fault, else `{"error": text}`, for some with `status: failed`."""
    if isinstance(error, InvalidInput):
        return {"detail": error.errors}
    return {"error": str(error)} | ({"status": "failed"} if error.status in _FAILED else {})


_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class PredictionEndpoint:
    """Answers create requests."""

    service: PredictionService
    bodies: BodyReader
    streams: sse.StreamLimits

    def answer(self, path_id: str | None) -> Response:
        """Answers a create request; `path_id` is the id in the path. Waits for the prediction unless the
        request is async or a stream. Raises what `service.admit` raises."""
        service = self.service
        call = parse.call(
            *self._read(), path_id, request.headers, service.webhooks.destinations, came_by_loopback(request)
        )
        prediction, outcome = service.admit(call, request.environ.get(TRACE))
        is_new = outcome is CallOutcome.NEW
        is_logged = sse.LOGGED in request.environ
        last_number = None if is_logged else parse.last_event_id(request.headers)
        if call.is_stream and (reader := service.follow(prediction, last_number, is_logged=is_logged)):
            keep_if(lambda: is_new and not reader.is_lost and prediction.status is Status.SUCCEEDED)
            return self._stream(reader)
        keep_if(lambda: is_new and prediction.status not in (Status.FAILED, Status.CANCELED))
        if outcome is CallOutcome.RUNNING:
            return encoded_response(prediction.encoded(with_input=True), 202)
        if outcome is CallOutcome.NEW and call.is_async:
            return encoded_response(prediction.encoded(), 202)
        return encoded_response(self._wait(prediction).encoded())

    def _read(self) -> tuple[Any, int]:
        """Reads the body: its JSON value, or an empty object if there is no body, and its size in bytes. Waits."""
        kind, limit = request.headers.get("Content-Type", ""), self.service.settings.max_body
        if (request.content_length or 0) > limit:
            raise BodyTooLarge(limit)
        if kind and not parse.is_json(kind):
            raise UnsupportedMedia("the body must be JSON: its Content-Type has to be application/json")
        data = self.bodies.read(request, limit)
        return (body_reader.decode(request, data, _JSON) if data or kind else {}), len(data)

    def _wait(self, prediction: Prediction) -> Prediction:
        """Waits until the prediction has ended; cancels it if its client leaves before that."""
        if prediction.is_finished:
            return prediction
        is_over = Signal()
        watch = ClientWatch(request.environ, is_over.set)
        prediction.listen(lambda change: is_over.set() if change is Change.COMPLETED else None)
        try:
            is_over.wait()
        finally:
            watch.close()
            if not prediction.is_finished:
                self.service.cancel(prediction.id)
        if watch.is_gone:
            raise ClientGone("the client left before its prediction had ended")
        return prediction

    def _stream(self, reader: EventReader) -> Response:
        answer = sse.response(sse.EventStream(request.environ, reader, b"", EventEncoder(), self.streams))
        answer.headers["Content-Type"] = "text/event-stream"  # as it is, without a charset
        return answer


_CANCEL = "/cancel"
_CANCEL_METHODS = ["POST", "PUT"]
_SHAPING = ("Accept", "Prefer")  # headers that change the form of an answer


def blueprint(
    service: PredictionService,
    shut_down: Callable[[], None],
    bodies: BodyReader,
    streams: sse.StreamLimits,
    *,
    has_document: bool = True,
    answers: KeyedAnswers | None = None,
) -> Blueprint:
    """Cog's endpoints over a service. `shut_down` begins to stop the server, and returns at once. `has_document`: the
    predictor's OpenAPI document is here, and not within another one. `answers`: those kept under idempotency keys."""
    routes = Blueprint("predictions", __name__)
    once = (answers or KeyedAnswers(bodies)).once(service.settings.max_body, _SHAPING)
    desk = PredictionEndpoint(service, bodies, streams)

    @routes.get("/")
    @without_key
    def index() -> Response:
        return page_for_people() or json_response(service_info.index(request))

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

    register_errors(routes, error_body)
    return routes


def _check_is_no_cancel(path: str) -> None:
    if path.endswith(_CANCEL):
        raise MethodNotAllowed(valid_methods=_CANCEL_METHODS)


# The service never stays UNHEALTHY: it answers so when the predictor's own check fails.
_STATES = [state for state in PredictorHealth if state is not PredictorHealth.UNHEALTHY]


class PredictionCollector(Collector):
    """Reads the service's counts at each scrape. `n_restarts` returns how many workers replaced one that died."""

    def __init__(self, service: PredictionService, n_restarts: Callable[[], int]) -> None:
        self._service = service
        self._n_restarts = n_restarts

    def collect(self) -> Iterable[Metric]:
        stats = self._service.stats()
        hooks = stats.webhooks
        slots = {"free": stats.slots.free, "busy": stats.slots.busy, "poisoned": stats.slots.poisoned}
        outcomes = {"delivered": hooks.delivered, "failed": hooks.failed, "retried": hooks.retried}
        labelled: tuple[tuple[Family, str, str, str, dict[str, int]], ...] = (
            (GaugeMetricFamily, "predictor_state", "1: the predictor is there", "state", self._states()),
            (GaugeMetricFamily, "prediction_slots", "Slots of the predictor's worker", "state", slots),
            (CounterMetricFamily, "predictions", "Ended predictions by status", "status", stats.n_ended),
            (CounterMetricFamily, "webhooks", "Webhooks by what became of them", "outcome", outcomes),
        )
        for family, name, text, label, counts in labelled:
            yield metric(family, f"corosrv_{name}", text, [label], (([value], n) for value, n in counts.items()))
        yield GaugeMetricFamily("corosrv_predictions_running", "Predictions taken that have not ended", stats.n_running)
        text = "Predictions refused for want of a free slot"
        yield CounterMetricFamily("corosrv_predictions_refused", text, stats.n_refused)
        text = "Workers started in place of one that died"
        yield CounterMetricFamily("corosrv_predictor_restarts", text, self._n_restarts())

    def _states(self) -> dict[str, int]:
        current = self._service.health
        return {state.value.lower(): int(state is current) for state in _STATES}
