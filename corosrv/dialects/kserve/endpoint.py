"""Takes a call over REST through its steps: read, decode, check, submit, wait, answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import msgspec
from flask import Request, Response, g, request

from corosrv.base.errors import ClientGone, CorosrvError, HandlerFailed, ReadTimeout
from corosrv.contracts.jobs.infer import (
    HandlerCard,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferReader,
    InferRequest,
    InferWorker,
    Target,
)
from corosrv.contracts.jobs.terms import TRACE, Terms
from corosrv.dialects.kserve import schema
from corosrv.dialects.kserve.generate_answer import GeneratedText, TextEvents, check_gives_text, decode_generate
from corosrv.dialects.kserve.infer_answer import OutputEvents, encode_answer
from corosrv.dialects.kserve.infer_request import (
    LENGTH_HEADER,
    OUTPUT_EVENTS,
    Body,
    DecodedRequest,
    EncodedBody,
    decode_request,
)
from corosrv.dialects.kserve.parameters import FrontParameters, call_terms
from corosrv.formats.tensors import check_inputs
from corosrv.web.http import sse
from corosrv.web.http.body_reader import BodyReader, chosen_encoding, compress
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.reply import respond, whole_response
from corosrv.web.http.terms import arrival, placed
from corosrv.workers.objects import ObjectStore, content_of

_BINARY = "application/octet-stream"

# Makes an answer's body of all that a call gave, of which there is at least one.
Encode = Callable[[Iterator[InferOutputs]], EncodedBody]


class UnaryCallAnswer:
    """Waits for a call and answers it. A client that leaves has its call cancelled."""

    __slots__ = ("_accept_encoding", "_encode", "_path", "_reader", "_watch")

    def __init__(self, environ: dict[str, Any], reader: InferReader, encode: Encode) -> None:
        self._reader = reader
        self._encode = encode
        self._path: str = environ["PATH_INFO"]
        self._accept_encoding: str = environ.get("HTTP_ACCEPT_ENCODING", "")
        self._watch = ClientWatch(environ, reader.cancel)

    def on_ready(self, listener: Callable[[], None]) -> bool:
        return self._reader.on_news(listener)

    def answer(self) -> Response:
        """Makes the answer. Waits; raises the call's error, what `encode` raises, and ClientGone."""
        try:
            encoded = self._encode(self._outputs())
        finally:
            self.close()
        return _response(encoded, self._accept_encoding)

    def _outputs(self) -> Iterator[InferOutputs]:
        has_answer = False
        while items := self._reader.take():
            for item in items:
                if isinstance(item, InferOutputs):
                    has_answer = True
                    yield item
                elif self._watch.is_gone:  # whose call was cancelled, which is no failure of its own
                    raise ClientGone("the client left before its answer was ready")
                elif item.error is not None:
                    raise item.error
        if not has_answer:
            raise HandlerFailed("the model ended without an answer")

    def answer_error(self, error: CorosrvError) -> Response:
        return schema.answer_error(error, f"POST {self._path}")

    def close(self) -> None:
        self._watch.close()
        self._reader.close()


def _response(encoded: EncodedBody, accept_encoding: str) -> Response:
    """Makes the answer's response, compressed if that was asked for."""
    encoding = chosen_encoding(accept_encoding)
    pieces = encoded.pieces if encoding is None else compress(encoded.pieces, encoding)
    response = whole_response(pieces, _BINARY if encoded.is_binary else "application/json")
    if encoded.is_binary:
        response.headers[LENGTH_HEADER] = encoded.json_length
    if encoding is not None:
        response.headers["Content-Encoding"] = encoding
        response.headers["Vary"] = "Accept-Encoding"
    return response


_PING = b": wait\n\n"


@dataclass(frozen=True, slots=True)
class InferEndpoint:
    """Makes calls of a worker for clients over REST."""

    worker: InferWorker
    bodies: BodyReader
    max_body_bytes: int  # of a body, and of what it inflates to
    streams: sse.StreamLimits
    objects: ObjectStore | None = None

    def read(self, limit: int) -> bytes:
        """Reads the current request's body. Waits; raises Refused."""
        return self.bodies.read_inflated(current(request), limit)

    def decode(self, decoder: msgspec.json.Decoder[Body]) -> DecodedRequest[Body]:
        """Reads and decodes the current request's body. Waits; raises Refused."""
        incoming = current(request)
        body = self.bodies.read_inflated(incoming, self.max_body_bytes)
        return decode_request(body, incoming.environ.get(_environ_key(LENGTH_HEADER)), decoder, self._find_object)

    def _find_object(self, object_id: str) -> memoryview:
        return content_of(self.objects, object_id, caller())

    def infer(self, target: Target, decoded: DecodedRequest[Any]) -> Response:
        """Makes one call and answers it. Waits; a client that leaves has its call cancelled.

        Raises what the worker does, InvalidTensor for an input that is not as the model declares it, and ClientGone.
        """
        incoming = current(request)
        if incoming.environ.get("HTTP_ACCEPT") == OUTPUT_EVENTS:
            reader = self.submit(target, decoded.request, decoded.front, is_stream=True)
            return self._stream(incoming.environ, reader, OutputEvents(reader.card))
        reader = self.submit(target, decoded.request, decoded.front)
        encode = partial(_encode_last, reader.card, decoded, self.max_body_bytes)
        return _respond(incoming, reader, encode)

    def generate(self, target: Target) -> Response:
        """Makes one call for text, and answers with all of it. Waits, and raises as `infer` does."""
        reader, answer = self._submit_text(target)
        return _respond(current(request), reader, partial(_encode_text, answer))

    def generate_stream(self, target: Target) -> Response:
        """Makes one call for text, and answers with events. Waits for the first of them, or as long as may be silent.

        Raises as `infer` does, also what the call ends in if it gives no text before.
        """
        reader, answer = self._submit_text(target, is_stream=True)
        return self._stream(current(request).environ, reader, TextEvents(answer))

    def _stream(self, environ: dict[str, Any], reader: InferReader, events: sse.Encoder[InferItem]) -> Response:
        if reader.is_replayed:
            return _marked(lambda: self._stream_answer(environ, reader, events))
        return self._stream_answer(environ, reader, events)

    def _stream_answer(self, environ: dict[str, Any], reader: InferReader, events: sse.Encoder[InferItem]) -> Response:
        try:
            first = self._first_events(environ, reader, events)
        except BaseException:
            reader.close()
            raise
        return sse.response(sse.EventStream(environ, reader, first, events, self.streams, ping=_PING))

    def _first_events(self, environ: dict[str, Any], reader: InferReader, events: sse.Encoder[InferItem]) -> bytes:
        watch = ClientWatch(sse.watched(environ), reader.cancel)
        try:
            items = reader.take(self.streams.ping_interval)
        except ReadTimeout:
            return _PING
        finally:
            watch.close()
        if watch.is_gone:
            raise ClientGone("the client left before its answer began")
        if isinstance(items[0], InferEnd) and items[0].error is not None:
            raise items[0].error
        first = events.encode(items)
        if events.failure is not None and not isinstance(items[0], InferOutputs):
            raise events.failure
        return first

    def _submit_text(self, target: Target, is_stream: bool = False) -> tuple[InferReader, GeneratedText]:
        """Submits the current request's call for text, all answers of which are taken where the model gives several."""
        card = self.worker.find(target)
        check_gives_text(card)
        decoded = decode_generate(self.read(self.max_body_bytes), card)
        reader = self.submit(target, decoded.request, decoded.front, is_stream=is_stream or card.is_stream)
        return reader, GeneratedText(reader.card, decoded.id)

    def submit(
        self, target: Target, call: InferRequest, front: FrontParameters, *, is_stream: bool = False
    ) -> InferReader:
        """Checks the inputs against the declarations, and submits a job on the current request's terms."""
        terms = _terms(current(request), call, front)
        card = self.worker.find(target)
        check_inputs(card.inputs, call.inputs)
        return self.worker.submit(InferJob(target, call, is_stream, terms, card))


@cache
def _environ_key(header: str) -> str:
    """Returns where a WSGI environ has a header."""
    return f"HTTP_{header.upper().replace('-', '_')}"


def _terms(incoming: Request, call: InferRequest, front: FrontParameters) -> Terms:
    environ = incoming.environ

    def header(name: str) -> str | None:  # half as long as through the request's own headers
        return environ.get(_environ_key(name))

    terms = call_terms(
        header,
        front,
        arrival(),
        caller=caller(),
        request_id=current(g).get("corosrv_request_id", ""),
        session=call.parameters.get("sequence_id", ""),
        trace=environ.get(TRACE),
    )
    notes = current(g)
    if (trip := notes.get("corosrv_trip")) is not None:  # a peer has passed it on
        terms = replace(terms, n_hops=trip.n_hops, visited=trip.visited)
    return placed(terms, notes.get("corosrv_account"), notes.get("corosrv_flow"))


def _encode_last(
    card: HandlerCard, decoded: DecodedRequest[Any], max_json: int, outputs: Iterator[InferOutputs]
) -> EncodedBody:
    *_, answer = outputs
    return encode_answer(card, decoded.id, answer, decoded.is_binary, max_json)


def _encode_text(text: GeneratedText, outputs: Iterator[InferOutputs]) -> EncodedBody:
    return EncodedBody([msgspec.json.encode(text.joined(outputs))])


def _respond(incoming: Request, reader: InferReader, encode: Encode) -> Response:
    """Answers a call with what `encode` makes of its outputs. May wait; raises what UnaryCallAnswer.answer raises."""
    pending = UnaryCallAnswer(incoming.environ, reader, encode)
    if reader.is_replayed:
        return _marked(lambda: respond(incoming, pending))
    return respond(incoming, pending)


def _marked(make_answer: Callable[[], Response]) -> Response:
    """Says of an answer, also of an error, that it was given before under the same idempotency key."""
    try:
        answer = make_answer()
    except CorosrvError as error:
        answer = schema.answer_error(error)
    answer.headers["Idempotency-Replayed"] = "true"
    return answer
