"""A create request over HTTP: parsed, handed to the service, and answered in the way that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from flask import Response, request
from gevent.event import Event as Signal

from corosrv.base.errors import BodyTooLarge, ClientGone, UnsupportedMedia
from corosrv.dialects.predictions import events, headers, parse
from corosrv.dialects.predictions.prediction import Change, Prediction, Status
from corosrv.dialects.predictions.service import CallOutcome, PredictionService
from corosrv.web.http import body_reader, sse
from corosrv.web.http.access import came_by_loopback
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.keyed_answers import keep_if
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.reply import encoded_response

_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class PredictionEndpoint:
    """Answers create requests.

    `ping_interval`: seconds of silence before a comment line; `write_timeout`: seconds a client may accept nothing.
    """

    service: PredictionService
    stats: HttpStats
    bodies: BodyReader
    ping_interval: float
    write_timeout: float

    def answer(self, path_id: str | None) -> Response:
        """Answers a create request; `path_id` is the id in the path. Waits for the prediction unless the
        request is async or a stream. Raises what `service.admit` raises."""
        service = self.service
        call = parse.call(
            *self._read(), path_id, request.headers, service.webhooks.destinations, came_by_loopback(request)
        )
        prediction, outcome = service.admit(call)
        is_new = outcome is CallOutcome.NEW
        if call.is_stream and (reader := service.follow(prediction, headers.last_event_id(request.headers))):
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
        if kind and not headers.is_json(kind):
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

    def _stream(self, reader: events.EventReader) -> Response:
        answer = sse.response(
            sse.EventStream(
                request.environ,
                reader,
                b"",
                events.EventEncoder(),
                self.ping_interval,
                self.write_timeout,
                self.stats,
            )
        )
        answer.headers["Content-Type"] = "text/event-stream"  # as it is, without a charset
        return answer
