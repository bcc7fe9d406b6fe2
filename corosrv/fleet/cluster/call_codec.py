"""Writes calls of the shared queue, and the replies to them, as msgpack; and reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from corosrv.base.errors import CorosrvError, ProtocolError
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, ForwardRequest, InferOutputs, InferRequest
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY
from corosrv.formats.tensors import Parameter, Tensor
from corosrv.workers.wire.calls import WireRequest, WireTensor
from corosrv.workers.wire.faults import Fault

T = TypeVar("T")


class RemoteError(CorosrvError):
    """Another front answered the call with this error: status, kind and words are those that it had there."""


@dataclass(frozen=True, slots=True)
class SharedRequest:
    """Holds what a front needs to run a call that another one accepted; the deadline is in the entry."""

    request: InferRequest
    stream: bool = False
    caller: str = ""
    request_id: str = ""
    priority: int = DEFAULT_PRIORITY
    session: str = ""
    waiting_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedEnd:
    """Holds the end of a call, and the outputs that come with it."""

    outputs: tuple[InferOutputs, ...] = ()
    error: CorosrvError | None = None


class _Forward(msgspec.Struct, frozen=True, array_like=True):
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    prompt: bytes


class _CodedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    request: WireRequest | None = None
    forward: _Forward | None = None
    stream: bool = False
    caller: str = ""
    request_id: str = ""
    priority: int = DEFAULT_PRIORITY
    session: str = ""
    waiting_keys: list[str] = []


class _CodedOutputs(msgspec.Struct, frozen=True, omit_defaults=True, tag="outputs"):
    outputs: list[WireTensor] = []
    parameters: dict[str, Parameter] = {}
    is_final: bool = False


class _CodedHead(msgspec.Struct, frozen=True, tag="head"):
    answer_status: int
    headers: list[tuple[str, str]]


class _CodedPiece(msgspec.Struct, frozen=True, tag="piece"):
    data: bytes


_Output = _CodedOutputs | _CodedHead | _CodedPiece


class _CodedEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    outputs: list[_Output] = []
    error: Fault | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(_CodedCall).decode
_decode_outputs = msgspec.msgpack.Decoder(list[_Output]).decode
_decode_end = msgspec.msgpack.Decoder(_CodedEnd).decode


def encode_call(call: SharedRequest) -> bytes:
    request = call.request
    wire: WireRequest | None = None
    forward: _Forward | None = None
    if isinstance(request, ForwardRequest):
        forward = _Forward(request.method, request.path, list(request.headers), request.body, request.prompt)
    else:
        outputs = None if request.outputs is None else list(request.outputs)
        wire = WireRequest(_wire_tensors(request.inputs), request.id, dict(request.parameters), outputs)
    return _encode(
        _CodedCall(
            wire, forward, call.stream, call.caller, call.request_id, call.priority, call.session,
            list(call.waiting_keys),
        )
    )  # fmt: skip


def decode_call(data: bytes) -> SharedRequest:
    """Reads a call. Raises ProtocolError, and InvalidTensor."""
    call = _decoded(_decode_call, data)
    request: InferRequest
    if call.forward is not None:
        forward = call.forward
        request = ForwardRequest(
            method=forward.method,
            path=forward.path,
            headers=tuple(forward.headers),
            body=forward.body,
            prompt=forward.prompt,
        )
    elif call.request is not None:
        wire = call.request
        outputs = None if wire.outputs is None else tuple(wire.outputs)
        request = InferRequest(_tensors(wire.inputs), wire.id, wire.parameters, outputs)
    else:
        raise ProtocolError("an entry of the shared queue has no request")
    return SharedRequest(
        request, call.stream, call.caller, call.request_id, call.priority, call.session, tuple(call.waiting_keys)
    )


def encode_outputs(outputs: Iterable[InferOutputs]) -> bytes:
    """Writes pieces of an answer."""
    return _encode([_wire_output(output) for output in outputs])


def decode_outputs(data: bytes) -> list[InferOutputs]:
    """Reads pieces of an answer. Raises ProtocolError, and InvalidTensor."""
    return [_output(wire) for wire in _decoded(_decode_outputs, data)]


def encode_end(end: SharedEnd) -> bytes:
    fault = None if end.error is None else Fault.from_error(end.error)
    return _encode(_CodedEnd([_wire_output(output) for output in end.outputs], fault))


def decode_end(data: bytes) -> SharedEnd:
    """Reads the end of a call. Raises ProtocolError, and InvalidTensor."""
    end = _decoded(_decode_end, data)
    error = None if end.error is None else end.error.fill(RemoteError(end.error.message))
    return SharedEnd(tuple(map(_output, end.outputs)), error)


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a message of the shared queue cannot be read: {error}") from None


def _wire_tensors(tensors: Iterable[Tensor]) -> list[WireTensor]:
    return [
        WireTensor(
            tensor.name, tensor.datatype, list(tensor.shape), bytes(tensor.raw), parameters=dict(tensor.parameters)
        )
        for tensor in tensors
    ]


def _tensors(wires: Iterable[WireTensor]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(wire.name, wire.datatype, wire.shape, raw=wire.raw, parameters=wire.parameters) for wire in wires
    )


def _wire_output(output: InferOutputs) -> _Output:
    if isinstance(output, AnswerHead):
        return _CodedHead(output.status, list(output.headers))
    if isinstance(output, AnswerBody):
        return _CodedPiece(output.data)
    return _CodedOutputs(_wire_tensors(output.outputs), dict(output.parameters), output.is_final)


def _output(wire: _Output) -> InferOutputs:
    if isinstance(wire, _CodedHead):
        return AnswerHead(status=wire.answer_status, headers=tuple(wire.headers))
    if isinstance(wire, _CodedPiece):
        return AnswerBody(data=wire.data)
    return InferOutputs(_tensors(wire.outputs), wire.parameters, wire.is_final)
