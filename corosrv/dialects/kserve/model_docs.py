"""Describes each declared model for the API document: its tensors, and a request that can be tried."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from corosrv.contracts.jobs.infer import HandlerCard, ModelStanding
from corosrv.dialects.kserve.api_docs import TAG
from corosrv.dialects.kserve.generate_answer import TEXT_INPUT, TEXT_OUTPUT
from corosrv.dialects.kserve.json_data import BINARY_ONLY
from corosrv.dialects.kserve.parameters import CallHeaders
from corosrv.formats.tensors import DATATYPES, TensorSpec
from corosrv.web.http.openapi import header_parameters

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
    infer = _operation(f"{root}/infer", f"Call {name}", _words(card), "InferBody", "InferAnswer", _infer_example(card))
    if not _is_text_model(card):
        return {f"{root}/infer": {"post": infer}}
    body = {TEXT_INPUT: "Once upon a time"}
    generate = _operation(f"{root}/generate", f"Generate text with {name}", "", "GenerateBody", "GenerateAnswer", body)
    return {f"{root}/infer": {"post": infer}, f"{root}/generate": {"post": generate}}


def _is_text_model(card: HandlerCard) -> bool:
    names = [spec.name for spec in card.inputs if spec.datatype == "BYTES"]
    return TEXT_INPUT in names and any(spec.name == TEXT_OUTPUT for spec in card.outputs)


def _operation(path: str, summary: str, text: str, body: str, answer: str, example: Any) -> dict[str, Any]:
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
    """Returns a body with every input that is required, None if JSON cannot hold one or it were long."""
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
