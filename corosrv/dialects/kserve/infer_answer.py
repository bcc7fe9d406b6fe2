"""Writes and reads the answer of an inference: JSON, with a binary tail where one was asked for.

Answers for a replica that wants them as they come are events of their own, for the protocol streams nothing but text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError, HandlerFailed, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs.infer import HandlerCard, InferItem, InferOutputs
from corosrv.dialects.kserve.infer_request import EncodedBody, split_body, tailed_members
from corosrv.dialects.kserve.json_data import BINARY_ONLY
from corosrv.dialects.kserve.schema import InferAnswer
from corosrv.formats.tensors import DATATYPES, Parameter, Tensor, elements
from corosrv.web.http import sse
from corosrv.workers.wire.calls import AskEnd, AskOutputs, WireTensor
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import make_tensors

_PIECE = 65_536  # bytes of content that are encoded together
_BATCH = 2048  # elements of BYTES
_ASK_FOR_BINARY = 'ask for it as binary data ("binary_data": true)'


_answers = msgspec.json.Decoder(InferAnswer)
_messages = msgspec.json.Decoder(AskOutputs | AskEnd)


class JsonRoom:
    """Counts down the bytes that the outputs of one answer may still take as JSON, which is made in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_free = max_bytes

    def check(self, tensor: Tensor) -> None:
        """Raises Refused for a tensor that takes more than is free even if none of its elements is long."""
        # A number is a digit and a comma; a text is its bytes, of which four were its length, two quotes and a comma.
        least = tensor.n_bytes - tensor.n_elements if tensor.datatype == "BYTES" else 2 * tensor.n_elements
        if least > self._n_free:
            raise self._overflow(tensor)

    def take(self, tensor: Tensor, n_bytes: int) -> None:
        """Counts the text of some elements. Raises Refused where it is one too many."""
        self._n_free -= n_bytes
        if self._n_free < 0:
            raise self._overflow(tensor)

    def _overflow(self, tensor: Tensor) -> Refused:
        return _unfit(tensor, f"makes the answer larger than the {self._max_bytes} bytes of JSON allowed")


def encode_answer(
    card: HandlerCard, call_id: str | None, answer: InferOutputs, is_binary: Callable[[str], bool], max_json: int
) -> EncodedBody:
    """Encodes an answer. `call_id`: the request's own, None if it has none. `is_binary`: whether an output of this name
    goes into the tail. `max_json`: bytes that all other outputs together may take.

    Gives way to other greenlets where outputs are long. Raises Refused for an output that JSON cannot hold, and
    HandlerFailed for a parameter that it cannot hold.
    """
    turns, room = Turns(), JsonRoom(max_json)
    outputs: list[dict[str, Any]] = []
    tail: list[bytes | memoryview] = []
    for tensor in answer.outputs:
        if is_binary(tensor.name):
            output = tailed_members(tensor)
            tail.append(tensor.raw)
        else:
            output = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
            output["data"] = msgspec.Raw(json_elements(tensor, turns, room))
            if tensor.parameters:
                output["parameters"] = tensor.parameters
        _check_finite(tensor.parameters)
        outputs.append(output)
    members = answer_head(card, call_id)
    if parameters := _parameters(card, answer):
        _check_finite(parameters)
        members["parameters"] = parameters
    members["outputs"] = outputs
    return EncodedBody([msgspec.json.encode(members), *tail])


def decode_answer(body: bytes, json_length: str | None) -> tuple[HandlerCard, InferOutputs]:
    """Decodes an answer whose outputs are all in the tail; returns what tells who gave it, too.

    `json_length`: the header Inference-Header-Content-Length, None if it is not there. Raises Refused,
    msgspec.MsgspecError and UnicodeDecodeError for a body that is none.
    """
    text, tail = split_body(body, json_length)
    answer = _answers.decode(text)
    outputs = tuple([tail.tensor(output) for output in answer.outputs])
    return HandlerCard(answer.model_name, answer.model_version), InferOutputs(outputs, answer.parameters)


def answer_head(card: HandlerCard, call_id: str | None) -> dict[str, Any]:
    """Returns the members that every answer begins with."""
    head: dict[str, Any] = {"model_name": card.name}
    if card.version:
        head["model_version"] = card.version
    if call_id is not None:
        head["id"] = call_id
    return head


def _parameters(card: HandlerCard, answer: InferOutputs) -> Mapping[str, Parameter]:
    if card.capability is None:
        return answer.parameters
    return {**answer.parameters, "capability": msgspec.json.encode(card.capability).decode()}


def _check_finite(parameters: Mapping[str, Parameter]) -> None:
    """Raises HandlerFailed for a number that JSON would turn into null."""
    for name, value in parameters.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise HandlerFailed(f"the parameter {name[:120]!r} of the answer is {value}, which JSON cannot hold")


def json_elements(tensor: Tensor, turns: Turns, room: JsonRoom) -> bytes:
    """Returns the elements as a flat array of JSON. Raises Refused for what JSON cannot hold. May give way."""
    if tensor.datatype in BINARY_ONLY:
        raise _unfit(tensor, f"is of {tensor.datatype}, which JSON has no elements for")
    room.check(tensor)
    if tensor.n_bytes <= _PIECE:
        text = msgspec.json.encode(_json_values(tensor, tensor.data))
        room.take(tensor, len(text))
        return text
    pieces = []
    for values in turns.among(_parts(tensor)):
        piece = msgspec.json.encode(_json_values(tensor, values))[1:-1]
        room.take(tensor, len(piece))
        pieces.append(piece)
    return b"[" + b",".join(pieces) + b"]"


def _parts(tensor: Tensor) -> Iterator[list[Any]]:
    """Yields the elements in lists that are short enough to be encoded at once."""
    view = memoryview(tensor.raw)
    if tensor.datatype == "BYTES":
        yield from elements.batches(view, _BATCH, _PIECE)
        return
    n_bytes = _PIECE // 8 * DATATYPES[tensor.datatype].size  # as many elements, whatever their size
    for begin in range(0, len(view), n_bytes):
        yield elements.unpack(tensor.datatype, view[begin : begin + n_bytes])


def _json_values(tensor: Tensor, values: list[Any]) -> list[Any]:
    if tensor.datatype == "BYTES":
        try:
            return [value.decode() for value in values]
        except UnicodeDecodeError:
            raise _unfit(tensor, "has bytes that are not UTF-8, which JSON cannot hold") from None
    # A sum is finite only if all of its numbers are; that of large ones may not be, although they are.
    if tensor.datatype in ("FP32", "FP64") and not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
        raise _unfit(tensor, "has numbers that are not finite, which JSON cannot hold")
    return values


def _unfit(tensor: Tensor, problem: str) -> Refused:
    return Refused(f"output {tensor.name[:120]!r} {problem}: {_ASK_FOR_BINARY}", "outputs")


class OutputEvents(sse.Encoder[InferItem]):
    """Makes a stream's events of a call's answers for another replica. An error of the call is an event as well.

    Each has a message of asks as JSON, in which contents are base64: an AskOutputs for each answer, then one AskEnd.
    """

    def __init__(self, card: HandlerCard) -> None:
        self._card = card

    def encode(self, items: list[InferItem]) -> bytes:
        return b"".join(map(self._event, items))

    def _event(self, item: InferItem) -> bytes:
        card = self._card
        if not isinstance(item, InferOutputs):
            return self._end(item.error)
        outputs = [
            WireTensor(tensor.name, tensor.datatype, list(tensor.shape), bytes(tensor.raw), -1, dict(tensor.parameters))
            for tensor in item.outputs
        ]
        parameters, is_final = dict(_parameters(card, item)), item.is_final or not card.is_stream
        return _event(AskOutputs(0, outputs, parameters, is_final, card.name, card.version))

    def encode_error(self, error: CorosrvError) -> bytes:
        return self._end(error)

    def _end(self, error: CorosrvError | None) -> bytes:
        fault = None if error is None else Fault.from_error(error)
        return _event(AskEnd(0, self._card.name, self._card.version, fault))


def _event(message: AskOutputs | AskEnd) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"


def decode_event(data: bytes) -> tuple[HandlerCard, InferOutputs] | AskEnd:
    """Decodes the data of such an event. Raises as decode_answer does."""
    message = _messages.decode(data)
    if isinstance(message, AskEnd):
        return message
    (tensors,) = make_tensors([message.outputs], memoryview(b""))
    card = HandlerCard(message.model, message.version, is_stream=True)
    return card, InferOutputs(tensors, message.parameters, message.is_final)
