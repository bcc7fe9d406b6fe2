"""Describes the v2 protocol's endpoints for the API document, and each declared model with a request to try."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from corosrv.contracts.jobs.infer import HandlerCard, ModelStanding
from corosrv.dialects.kserve import metadata, schema
from corosrv.dialects.kserve.generate_answer import TEXT_INPUT, TEXT_OUTPUT
from corosrv.dialects.kserve.json_data import BINARY_ONLY
from corosrv.dialects.kserve.parameters import CallHeaders
from corosrv.dialects.kserve.schema import KserveError
from corosrv.formats.tensors import DATATYPES, TensorSpec
from corosrv.web.http import openapi as operations
from corosrv.web.http.openapi import READS, header_parameters

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


_SCHEMA = "#/components/schemas/{}"
_VARIABLE = 2  # elements that an example has in a dimension of any size
_MAX_ELEMENTS = 64  # of an example


def document(standings: Callable[[], Iterable[ModelStanding]], takes_keys: bool = True) -> dict[str, Any]:
    """Makes a part of the API document: the paths of every model that declares its inputs.

    `takes_keys`: calls heed an idempotency key.
    """
    paths: dict[str, Any] = {}
    for standing in standings():
        card = standing.card
        if card.capability is None and card.inputs:
            paths |= _paths(card)
    headers = list(header_parameters(CallHeaders, takes_keys))
    for path in paths.values():
        path["post"]["parameters"] = headers
    return {"paths": paths, "components": {"schemas": {}}}


def _paths(card: HandlerCard) -> dict[str, Any]:
    root = f"/v2/models/{card.name}" + (f"/versions/{card.version}" if card.version else "")
    name = f"{card.name} {card.version}".strip()
    infer = _model_operation(
        f"{root}/infer", f"Call {name}", _words(card), "InferBody", "InferAnswer", _infer_example(card)
    )
    if not _is_text_model(card):
        return {f"{root}/infer": {"post": infer}}
    body = {TEXT_INPUT: "Once upon a time"}
    generate = _model_operation(
        f"{root}/generate", f"Generate text with {name}", "", "GenerateBody", "GenerateAnswer", body
    )
    return {f"{root}/infer": {"post": infer}, f"{root}/generate": {"post": generate}}


def _is_text_model(card: HandlerCard) -> bool:
    names = [spec.name for spec in card.inputs if spec.datatype == "BYTES"]
    return TEXT_INPUT in names and any(spec.name == TEXT_OUTPUT for spec in card.outputs)


def _model_operation(path: str, summary: str, text: str, body: str, answer: str, example: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _SCHEMA.format(body)}}
    if example is not None:
        content["examples"] = {"An example": {"value": example}}
    answers = {"application/json": {"schema": {"$ref": _SCHEMA.format(answer)}}}
    errors = {"application/json": {"schema": {"$ref": _SCHEMA.format("KserveError")}}}
    return {
        "operationId": "_".join(["post", *re.findall(r"[A-Za-z0-9]+", path)]),
        "tags": [TAG],
        "summary": summary,
        "description": text,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            "200": {"description": "Done", "content": answers},
            "default": {"description": "An error", "content": errors},
        },
    }


def _words(card: HandlerCard) -> str:
    words = f"Takes {_tensors(card.inputs)}."
    return f"{words} Gives {_tensors(card.outputs)}." if card.outputs else words


def _tensors(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(
        f"`{spec.name}` ({spec.datatype} {list(spec.shape)}{', optional' if spec.optional else ''})" for spec in specs
    )


def _infer_example(card: HandlerCard) -> dict[str, Any] | None:
    """Returns a body with all required inputs; None where JSON cannot hold one, or the body would be long."""
    inputs = [_input(spec) for spec in card.inputs if not spec.optional]
    return None if None in inputs else {"inputs": inputs}


def _input(spec: TensorSpec) -> dict[str, Any] | None:
    shape = [_VARIABLE if size == -1 else size for size in spec.shape]
    n_elements = math.prod(shape)
    if spec.datatype in BINARY_ONLY or n_elements > _MAX_ELEMENTS:
        return None
    data = [_element(spec.datatype, number) for number in range(n_elements)]
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data}


def _element(datatype: str, number: int) -> Any:
    if datatype == "BYTES":
        return "some text"
    if datatype == "BOOL":
        return number % 2 == 0
    return number + 1 if DATATYPES[datatype].is_integer else number + 0.5
