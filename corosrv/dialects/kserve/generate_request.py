"""Reads a request for generated text, and makes an inference call of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.infer import HandlerCard, InferRequest
from corosrv.dialects.kserve import json_data
from corosrv.dialects.kserve.parameters import FrontParameters, split_parameters
from corosrv.formats.bodies import check_text, decode, decode_unscanned
from corosrv.formats.tensors import Parameter, Tensor, TensorSpec

TEXT_INPUT = "text_input"
# A parameter of language models: the strings of a `stop` that is an array, as JSON. Parameters are scalars.
STOP_STRINGS = "stop_strings"

_SHORT = 65_536  # bytes, which need no scan before they are decoded
_DECODER = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Holds a request for text. `id`: the client's own name for it, None if it gave none."""

    id: str | None
    request: InferRequest
    front: FrontParameters


def decode_generate(body: bytes, card: HandlerCard) -> GenerateRequest:
    """Decodes a body for the model of this card.

    A member that is no part of the protocol is the input of its name where the model declares one, else a parameter.
    Raises Refused, which names the member at fault.
    """
    members = decode_unscanned(body, _DECODER) if len(body) <= _SHORT else decode(body, _DECODER)
    text = check_text(_member(members, TEXT_INPUT, str), TEXT_INPUT)
    call_id = _member(members, "id", str) if "id" in members else None
    parameters = _parameters(_member(members, "parameters", dict) if "parameters" in members else {})
    specs = {spec.name: spec for spec in card.inputs}
    inputs = [_text_tensor(text, specs, bool(card.inputs))]
    for name, value in members.items():
        if name in (TEXT_INPUT, "id", "parameters"):
            continue
        if name in specs:
            inputs.append(_tensor(specs[name], value))
        elif name in parameters:
            raise Refused(f"{name[:120]} is there twice: beside the parameters and among them", name[:120])
        else:
            parameters[name] = _scalar(name, value, " is no declared input of this model, and a parameter")
    front, own = split_parameters(parameters)
    return GenerateRequest(call_id, InferRequest(tuple(inputs), call_id or "", own), front)


def _member(members: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in members:
        raise Refused(f"{name} is required", name, "missing_required_parameter")
    if not isinstance(members[name], kind):
        raise Refused(f"{name} must be {'an object' if kind is dict else 'a string'}", name)
    return members[name]


def _parameters(members: Mapping[str, Any]) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for name, value in members.items():
        if name == "stop" and isinstance(value, list):
            if not all(isinstance(text, str) for text in value):
                raise Refused("parameters.stop must be a string, or an array of strings", "parameters.stop")
            parameters[STOP_STRINGS] = msgspec.json.encode(value).decode()
        else:
            parameters[name] = _scalar(f"parameters.{name}", value)
    return parameters


def _scalar(name: str, value: object, subject: str = "") -> Parameter:
    """Returns the value of a parameter. `subject`: what a refusal says behind the name."""
    if not isinstance(value, (str, int, float)):
        raise Refused(f"{name[:120]}{subject} must be a string, a number or a boolean", name[:120])
    return value


def _text_tensor(text: str, specs: Mapping[str, TensorSpec], is_declared: bool) -> Tensor:
    spec = specs.get(TEXT_INPUT)
    if is_declared and (spec is None or spec.datatype != "BYTES"):
        raise Refused(f"this model takes no text: it has no input {TEXT_INPUT} of BYTES", TEXT_INPUT)
    return Tensor(TEXT_INPUT, "BYTES", [1] if spec is None else spec.shape_for(1), data=[text])


def _tensor(spec: TensorSpec, value: object) -> Tensor:
    """Makes the input that a member is: a scalar, or an array, which may be nested."""
    data = json_data.flat(value) if isinstance(value, list) else [value]
    return json_data.tensor(spec.name, spec.datatype, spec.shape_for(len(data)), data)
