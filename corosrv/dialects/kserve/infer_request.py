"""Reads and writes a request for an inference: JSON, with or without a binary tail, which has the bytes of tensors.

Answers have the same form; see corosrv.dialects.kserve.infer_answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from corosrv.base.errors import InvalidTensor, NotSupported, Refused
from corosrv.contracts.jobs.infer import CapabilityTarget, InferRequest, Target
from corosrv.dialects.kserve import json_data
from corosrv.dialects.kserve.json_data import cut_data
from corosrv.dialects.kserve.parameters import OBJECT_REF, FrontParameters, object_id, split_parameters
from corosrv.dialects.kserve.schema import CapabilityBody, InferBody, InputBody, OutputBody, OutputTensor
from corosrv.formats import bodies
from corosrv.formats.bodies import decode_unscanned
from corosrv.formats.tensors import Tensor
from corosrv.workers.objects import content_of

LENGTH_HEADER = "Inference-Header-Content-Length"  # bytes of the JSON, before any compression
# The Accept header of a replica that passes a call on and wants its answers one by one; see OutputEvents.
OUTPUT_EVENTS = "text/event-stream; content=outputs"
SIZE = "binary_data_size"  # a tensor's parameter: how many bytes of the tail are its own

_MAX_DIGITS = 15


class BinaryTail:
    """Hands out the bytes behind a body's JSON, which tensors take in their order. Copies nothing."""

    def __init__(self, content: memoryview | None) -> None:
        """`content`: None where there is no tail, since nothing says how long the JSON is."""
        self._content = content
        self._at = 0

    def take(self, name: str, size: object) -> memoryview:
        """Returns the bytes of the next tensor. Raises InvalidTensor for a size that is none, or is not there."""
        if type(size) is not int or size < 0:
            raise InvalidTensor(name, f"has a {SIZE} that is no integer from 0 on")
        if self._content is None:
            raise InvalidTensor(name, f"has a {SIZE}, but the request has no header {LENGTH_HEADER}")
        n_left = len(self._content) - self._at
        if size > n_left:
            raise InvalidTensor(name, f"has a {SIZE} of {size}, where {n_left} bytes are left in the body")
        self._at += size
        return self._content[self._at - size : self._at]

    def tensor(self, member: InputBody | OutputTensor) -> Tensor:
        """Returns the next tensor, and takes its size from its parameters. Raises InvalidTensor."""
        raw = self.take(member.name, member.parameters.pop(SIZE, None))
        return Tensor(member.name, member.datatype, member.shape, raw=raw, parameters=member.parameters)

    def check_is_used_up(self) -> None:
        """Raises Refused where bytes are left that no tensor has taken."""
        if self._content is not None and self._at < len(self._content):
            raise Refused(f"the body has {len(self._content) - self._at} bytes behind its last tensor", SIZE)


def split_body(body: bytes, json_length: str | None) -> tuple[bytes, BinaryTail]:
    """Returns a body's JSON and its tail. Raises Refused for a header that is no length within the body."""
    if json_length is None:
        return body, BinaryTail(None)
    text = json_length.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise Refused(f"the header {LENGTH_HEADER} is no integer from 0 on", LENGTH_HEADER)
    length = int(text)
    if length > len(body):
        raise Refused(f"the header {LENGTH_HEADER} says {length}, where the body has {len(body)} bytes", LENGTH_HEADER)
    return body[:length], BinaryTail(memoryview(body)[length:])


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """Holds a body in pieces: the JSON, and the contents that are its binary tail."""

    pieces: list[bytes | memoryview]

    @property
    def is_binary(self) -> bool:
        return len(self.pieces) > 1

    @property
    def json_length(self) -> str:
        """The value of the header Inference-Header-Content-Length."""
        return str(len(self.pieces[0]))


def tailed_members(tensor: Tensor) -> dict[str, Any]:
    """Returns what the JSON has of a tensor whose content is in the tail."""
    parameters = {**tensor.parameters, SIZE: tensor.n_bytes}
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "parameters": parameters}


def encode_request(call: InferRequest, target: Target) -> EncodedBody:
    """Encodes a call: all inputs, and the outputs that it asks for, in the binary tail."""
    members: dict[str, Any] = {
        "inputs": [tailed_members(tensor) for tensor in call.inputs],
        "parameters": {**call.parameters, "binary_data_output": True},
    }
    if call.id:
        members["id"] = call.id
    if call.outputs is not None:
        members["outputs"] = [{"name": name} for name in call.outputs]
    if isinstance(target, CapabilityTarget):
        members |= {"capability": target.query, "prefer": target.prefer, "fuzzy": target.is_fuzzy}
    return EncodedBody([msgspec.json.encode(members), *(tensor.raw for tensor in call.inputs)])


Body = TypeVar("Body", bound=InferBody)
FindObject = Callable[[str], memoryview]  # by its id, for the client of the current request; raises as content_of does
_no_object: FindObject = partial(content_of, None, caller="")

INFER_DECODER = msgspec.json.Decoder(InferBody)
CAPABILITY_DECODER = msgspec.json.Decoder(CapabilityBody)

_LONG = 65_536  # bytes of JSON, from which on it is decoded in pieces


@dataclass(frozen=True, slots=True)
class DecodedRequest(Generic[Body]):
    """Holds a request's body without its inputs, the call that it asks for, and how to make and answer the call.

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
    body: bytes, json_length: str | None, decoder: msgspec.json.Decoder[Body], find_object: FindObject = _no_object
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
        raw = find_object(object_id(name, parameters.pop(OBJECT_REF)))
        return Tensor(name, member.datatype, member.shape, raw=raw, parameters=parameters)
    if SIZE in parameters:
        if member.data is not msgspec.UNSET:
            raise InvalidTensor(name, f"has both data and {SIZE}")
        return tail.tensor(member)
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
