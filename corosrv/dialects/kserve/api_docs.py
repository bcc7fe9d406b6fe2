"""Describes the v2 protocol's endpoints for the API document."""

from __future__ import annotations

from functools import partial

from corosrv.dialects.kserve import metadata, schema
from corosrv.dialects.kserve.parameters import CallHeaders
from corosrv.dialects.kserve.schema import KserveError
from corosrv.web.http import openapi as operations
from corosrv.web.http.openapi import READS

TAG = "Inference"
_CALLS = (*READS, 404, 429, 500, 502, 503, 504)
_PARAMETERS = {"name": "the model", "version": "one of its versions, exactly"}

_operation = partial(operations.operation, TAG, error=KserveError)
_call = partial(_operation, headers=CallHeaders)

_ADD = {
    "inputs": [
        {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]},
        {"name": "b", "datatype": "INT32", "shape": [2], "data": [10, 20]},
    ]
}

_TEXT = {"text_input": "Once upon a time", "parameters": {"max_tokens": 32}}

server = _operation(
    "Describe the server", "Its version, and the extensions that it offers.", answer=metadata.ServerMetadata
)
live = _operation("Say that the server answers", answer=metadata.LiveAnswer)
ready = _operation("Say whether calls are taken", answer=metadata.ReadyAnswer, statuses=(503,))
models = _operation("List the models", answer=metadata.ModelNames)
model = _operation("Describe a model", answer=metadata.ModelMetadata, statuses=(404,), parameters=_PARAMETERS)
model_ready = _operation(
    "Say whether a model takes calls", answer=metadata.ModelReadyAnswer, statuses=(404, 503), parameters=_PARAMETERS
)
infer = _call(
    "Call a model",
    "`data` may be flat or nested. With the header `Inference-Header-Content-Length` the body is that many bytes of "
    "JSON and a binary tail, from which inputs with `parameters.binary_data_size` take their content; outputs come "
    "so where `parameters.binary_data` asks for it. `parameters.timeout` (microseconds) and "
    "`parameters.priority` (1 to 9) are for the server, all others for the model.",
    body=schema.InferBody,
    answer=schema.InferAnswer,
    statuses=_CALLS,
    parameters=_PARAMETERS,
    examples={"Two inputs": _ADD},
)
generate = _call(
    "Generate text with a model",
    "Members beside those named here are inputs of that name where the model has one, and parameters elsewhere.",
    body=schema.GenerateBody,
    answer=schema.GenerateAnswer,
    statuses=_CALLS,
    parameters=_PARAMETERS,
    examples={"A text": _TEXT},
)
generate_stream = _call(
    "Stream a model's text",
    "Each event has a piece of the text; the last one says `done: true`, or is an error. The status waits for the "
    "first piece. Lines that begin with a colon say that there will be more.",
    body=schema.GenerateBody,
    events=schema.GenerateEvent,
    media_type="text/event-stream",
    statuses=_CALLS,
    parameters=_PARAMETERS,
    examples={"A text": _TEXT},
)
infer_capability = _call(
    "Call whatever has a capability",
    "`capability` says what each attribute must be: a value, a list of values of which any will do, or an object with "
    "`gt`, `gte`, `lt`, `lte`, `ne`, `prefix`, `glob` or `exists`. Headers `X-Capability-NAME` say the same, and "
    "`X-Prefer` (a JSON object) and `X-Fuzzy` what `prefer` and `fuzzy` do. The answer's parameter "
    "`capability` has all attributes of the handler that was chosen.",
    body=schema.CapabilityBody,
    answer=schema.InferAnswer,
    statuses=(*_CALLS, 409),
    examples={"A small embedder": {"capability": {"type": "embed", "ctx": {"gte": 4096}}, "inputs": []}},
)
index = _operation(
    "List every version of every model",
    body=schema.IndexBody,
    answer=list[metadata.IndexRow],
    statuses=(400,),
    examples={"All": {}, "Only those that are ready": {"ready": True}},
)
