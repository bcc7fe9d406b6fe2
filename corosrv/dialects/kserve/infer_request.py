"""Reads a request for an inference: JSON, with or without a binary tail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from corosrv.base.errors import InvalidTensor, NotSupported, Refused
from corosrv.contracts.jobs.infer import InferRequest
from corosrv.dialects.kserve import json_data
from corosrv.dialects.kserve.binary_tail import SIZE, BinaryTail, split_body
from corosrv.dialects.kserve.long_body import cut_data
from corosrv.dialects.kserve.object_inputs import OBJECT_REF, FindObject, no_objects, object_id
from corosrv.dialects.kserve.parameters import FrontParameters, split_parameters
from corosrv.dialects.kserve.schema import CapabilityBody, InferBody, InputBody, OutputBody
from corosrv.formats import bodies
from corosrv.formats.bodies import decode_unscanned
from corosrv.formats.tensors import Tensor

Body = TypeVar("Body", bound=InferBody)

INFER_DECODER = msgspec.json.Decoder(InferBody)
CAPABILITY_DECODER = msgspec.json.Decoder(CapabilityBody)

_LONG = 65_536  # bytes of JSON, from which on it is decoded in pieces


@dataclass(frozen=True, slots=True)
class DecodedRequest(Generic[Body]):
    """Holds a request as it was sent but for its inputs, the call that it asks for, and how to make and answer that.

    `binary`: by the name of an output that was asked for, whether it is to come in the binary tail.
    """

    body: Body
    request: InferRequest
    front: FrontParameters
    binary: Mapping[str, bool]

    @property
    def id(self) -> str | None:
        """The client's own name for the call, None if it gave none."""
        return None if self.body.id is msgspec.UNSET else self.body.id

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.front.is_binary)


def decode_request(
    body: bytes,
    json_length: str | None,
    decoder: msgspec.json.Decoder[Body],
    find_object: FindObject = no_objects,
) -> DecodedRequest[Body]:
    """Decodes a body. `json_length`: the header Inference-Header-Content-Length, None if it is not there.

    `find_object`: finds the content of an input that refers to an object.

    Gives way to other greenlets where the body is long. Raises Refused, which names the field or the tensor at fault.
    """
    text, tail = split_body(body, json_length)
    decoded = _decode(text, decoder)
    front, parameters = split_parameters(decoded.parameters)
    inputs = tuple([_input(member, tail, find_object) for member in decoded.inputs])
    tail.check_is_used_up()
    decoded.inputs = []  # their lists take much more memory than the tensors, and the call may wait for long
    names, binary = _outputs(decoded.outputs)
    return DecodedRequest(decoded, InferRequest(inputs, decoded.id or "", parameters, names), front, binary)


def _decode(text: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    if len(text) <= _LONG:
        return decode_unscanned(text, decoder)
    rest, arrays = cut_data(text)
    bodies.check(rest)
    decoded = decode_unscanned(rest, decoder)
    for member in decoded.inputs:
        if isinstance(member.data, str):
            member.data = arrays.get(member.data, member.data)
    return decoded


def _input(member: InputBody, tail: BinaryTail, find_object: FindObject) -> Tensor:
    name, parameters = member.name, member.parameters
    if OBJECT_REF in parameters:
        if member.data is not msgspec.UNSET or SIZE in parameters:
            raise InvalidTensor(name, f"has both data and {OBJECT_REF}")
        raw = find_object(object_id(name, parameters[OBJECT_REF]))
        others = {key: value for key, value in parameters.items() if key != OBJECT_REF}
        return Tensor(name, member.datatype, member.shape, raw=raw, parameters=others)
    if SIZE in parameters:
        if member.data is not msgspec.UNSET:
            raise InvalidTensor(name, f"has both data and {SIZE}")
        raw = tail.take(name, parameters[SIZE])
        others = {key: value for key, value in parameters.items() if key != SIZE}
        return Tensor(name, member.datatype, member.shape, raw=raw, parameters=others)
    if member.data is msgspec.UNSET:
        raise InvalidTensor(name, f"has neither data nor {SIZE} nor {OBJECT_REF}")
    return json_data.tensor(name, member.datatype, member.shape, member.data, parameters)


def _outputs(outputs: list[OutputBody] | None) -> tuple[tuple[str, ...] | None, dict[str, bool]]:
    """Returns the names of the outputs that are asked for, None for all, and which say whether they are binary."""
    if not outputs:
        return None, {}
    binary: dict[str, bool] = {}
    for output in outputs:
        if "classification" in output.parameters:
            raise NotSupported("outputs as classifications are not offered", "parameters.classification")
        is_binary = output.parameters.get("binary_data")
        if isinstance(is_binary, bool):
            binary[output.name] = is_binary
        elif is_binary is not None:
            raise Refused("binary_data of an output is neither true nor false", "outputs.parameters.binary_data")
    names = tuple([output.name for output in outputs])
    if len(set(names)) != len(names):
        raise Refused("an output is asked for twice", "outputs")
    return names, binary
