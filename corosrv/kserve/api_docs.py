"""Describes the v2 protocol's endpoints for the API document."""

from __future__ import annotations

from functools import partial

from corosrv.http import operation as operations
from corosrv.http.operation import READS
from corosrv.kserve import health, infer_types, metadata, schema
from corosrv.kserve.errors import KserveError

_TAG = "Inference"
_CALLS = (*READS, 404, 429, 500, 502, 503, 504)
_PARAMETERS = {"name": "the model", "version": "one of its versions, exactly"}

_operation = partial(operations.operation, _TAG, error=KserveError)

_ADD = {
    "inputs": [
        {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]},
        {"name": "b", "datatype": "INT32", "shape": [2], "data": [10, 20]},
    ]
}

server = _operation(
    "Describe the server", "Its version, and the extensions that it offers.", answer=metadata.ServerMetadata
)
live = _operation("Say that the server answers", answer=health.LiveAnswer)
ready = _operation("Say whether calls are taken", answer=health.ReadyAnswer, statuses=(503,))
models = _operation("List the models", answer=metadata.ModelNames)
model = _operation("Describe a model", answer=metadata.ModelMetadata, statuses=(404,), parameters=_PARAMETERS)
model_ready = _operation(
    "Say whether a model takes calls", answer=health.ModelReadyAnswer, statuses=(404, 503), parameters=_PARAMETERS
)
infer = _operation(
    "Call a model",
    "`data` may be flat or nested. With the header `Inference-Header-Content-Length` the body is that many bytes of "
    "JSON and a binary tail, from which inputs with `parameters.binary_data_size` take their content; outputs come "
    "so where `parameters.binary_data` asks for it. `parameters.timeout` (microseconds) and "
    "`parameters.priority` (1 to 9) are for the server, all others for the model.",
    body=schema.InferBody,
    answer=infer_types.InferAnswer,
    statuses=_CALLS,
    parameters=_PARAMETERS,
    examples={"Two inputs": _ADD},
)
index = _operation(
    "List every version of every model",
    body=schema.IndexBody,
    answer=list[metadata.IndexRow],
    statuses=(400,),
    examples={"All": {}, "Only those that are ready": {"ready": True}},
)
