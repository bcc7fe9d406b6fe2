"""The flow of a call over REST: read, decode, check, submit, wait, answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec
from flask import Request, Response, g, request

from corosrv.errors import ClientGone, HandlerFailed
from corosrv.http.body_reader import BodyReader
from corosrv.http.callers import caller
from corosrv.http.client import ClientWatch
from corosrv.http.lean_flask import current
from corosrv.http.reply import whole_response
from corosrv.jobs.infer import InferJob, InferOutputs, InferReader, InferRequest, InferWorker, Target
from corosrv.jobs.terms import Terms
from corosrv.kserve.binary_tail import LENGTH_HEADER
from corosrv.kserve.infer_answer import encode_answer
from corosrv.kserve.infer_request import Body, DecodedRequest, decode_request
from corosrv.kserve.parameters import FrontParameters
from corosrv.kserve.terms import call_terms
from corosrv.tensors import check_inputs

_BINARY = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class InferEndpoint:
    """Makes calls of a worker for clients over REST. `max_body_bytes`: of a body, and of what it inflates to."""

    worker: InferWorker
    bodies: BodyReader
    max_body_bytes: int

    def read(self, limit: int) -> bytes:
        """Reads the current request's body. Waits; raises Refused."""
        return self.bodies.read(current(request), limit)

    def decode(self, decoder: msgspec.json.Decoder[Body]) -> DecodedRequest[Body]:
        """Reads and decodes the current request's body. Waits; raises Refused."""
        return decode_request(self.read(self.max_body_bytes), request.headers.get(LENGTH_HEADER), decoder)

    def infer(self, target: Target, decoded: DecodedRequest[Any]) -> Response:
        """Makes one call and answers it. Waits; a client that leaves has its call cancelled.

        Raises what the worker does, InvalidTensor for an input that is not as the model declares it, and ClientGone.
        """
        incoming = current(request)
        reader = self.submit(target, decoded.request, decoded.front)
        answer = wait_for_answer(incoming, reader)
        encoded = encode_answer(reader.card, decoded.id, answer, decoded.is_binary)
        response = whole_response(encoded.pieces, _BINARY if encoded.is_binary else "application/json")
        if encoded.is_binary:
            response.headers[LENGTH_HEADER] = str(len(encoded.pieces[0]))
        return response

    def submit(
        self, target: Target, call: InferRequest, front: FrontParameters, *, is_stream: bool = False
    ) -> InferReader:
        """Checks the inputs against the declarations, and submits a job on the current request's terms."""
        terms = self._terms(call, front)
        check_inputs(self.worker.find(target).inputs, call.inputs)
        return self.worker.submit(InferJob(target, call, is_stream, terms))

    def _terms(self, call: InferRequest, front: FrontParameters) -> Terms:
        return call_terms(
            current(request).headers.get,
            front,
            time.monotonic(),
            caller=caller(),
            request_id=current(g).get("corosrv_request_id", ""),
            session=call.parameters.get("sequence_id", ""),
        )


def wait_for_answer(incoming: Request, reader: InferReader) -> InferOutputs:
    """Waits for the one answer of a call, and closes the reader. Raises the call's error, and ClientGone."""
    watch = ClientWatch(incoming.environ, reader.cancel)
    answer: InferOutputs | None = None
    try:
        with reader:
            while items := reader.take():
                for item in items:
                    if isinstance(item, InferOutputs):
                        answer = item
                    elif watch.is_gone:  # whose call was cancelled, which is no failure of its own
                        raise ClientGone("the client left before its answer was ready")
                    elif item.error is not None:
                        raise item.error
    finally:
        watch.close()
    if answer is None:
        raise HandlerFailed("the model ended without an answer")
    return answer
