"""Generated text over the v2 protocol: a request becomes an inference call, and its answer one object, or events."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError, HandlerFailed, Refused
from corosrv.contracts.jobs.infer import HandlerCard, InferItem, InferOutputs, InferRequest
from corosrv.dialects.kserve import json_data
from corosrv.dialects.kserve.infer_answer import answer_head
from corosrv.dialects.kserve.parameters import FrontParameters, split_parameters
from corosrv.dialects.kserve.schema import error_body
from corosrv.formats.bodies import check_text, decode, decode_unscanned
from corosrv.formats.tensors import Parameter, Tensor, TensorSpec
from corosrv.web.http import sse
from corosrv.workers.dispatch.answers import MAX_JOINED

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


TEXT_OUTPUT = "text_output"

_FINISH = "finish_reason"
_COUNTS = ("num_input_tokens", "num_output_tokens")


class GeneratedText:
    """Makes objects of a call's answers; characters that an answer ends within are held back for the next one."""

    def __init__(self, card: HandlerCard, call_id: str | None) -> None:
        self._model = card.name
        self._head = answer_head(card, call_id)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._more: dict[str, Any] = {}  # what language models say of their answer
        self._has_text = False

    def piece(self, answer: InferOutputs) -> dict[str, Any]:
        """Returns the object for one answer. Raises HandlerFailed for text that is not UTF-8."""
        text = ""
        for tensor in answer.outputs:
            if tensor.name == TEXT_OUTPUT and tensor.datatype == "BYTES":
                self._has_text = True
                text += self._decode(b"".join(tensor.data))
            elif tensor.name == _FINISH and tensor.datatype == "BYTES" and tensor.n_elements and tensor.data[0]:
                self._more[_FINISH] = tensor.data[0].decode(errors="replace")
            elif tensor.name in _COUNTS and tensor.n_elements:
                self._more[tensor.name] = tensor.data[0]
        if answer.is_final:
            text += self._decode(b"", is_end=True)
        return self._object(text)

    def end(self) -> dict[str, Any]:
        """Returns the object behind the last answer. Raises HandlerFailed for text that ends within a character."""
        return self._object(self._decode(b"", is_end=True))

    def joined(self, answers: Iterable[InferOutputs]) -> dict[str, Any]:
        """Returns the object for all answers together. Raises HandlerFailed if their text is too long, or not there."""
        texts, n_characters = [], 0
        for answer in answers:
            if text := self.piece(answer)[TEXT_OUTPUT]:
                texts.append(text)
                n_characters += len(text)
            if n_characters > MAX_JOINED:
                raise HandlerFailed(
                    f"the joined answer exceeds {MAX_JOINED} bytes; call the model with generate_stream"
                )
        if not self._has_text:
            raise no_text(self._model)
        return self._object("".join((*texts, self._decode(b"", is_end=True))))

    def _object(self, text: str) -> dict[str, Any]:
        return {**self._head, TEXT_OUTPUT: text, **self._more}

    def _decode(self, content: bytes, is_end: bool = False) -> str:
        try:
            return self._decoder.decode(content, is_end)
        except UnicodeDecodeError:
            raise HandlerFailed(f"the model's {TEXT_OUTPUT} is not UTF-8") from None


def check_gives_text(card: HandlerCard) -> None:
    """Raises Refused for a model that declares outputs, and no text among them."""
    if card.outputs and not any(spec.name == TEXT_OUTPUT and spec.datatype == "BYTES" for spec in card.outputs):
        raise no_text(card.name)


def no_text(model: str) -> Refused:
    """Makes the error for a model that generates no text."""
    return Refused(f"{model!r} gives no {TEXT_OUTPUT} of type BYTES, so it cannot generate text: call it with /infer")


class TextEvents(sse.Encoder[InferItem]):
    """Makes a stream's events of a call's answers."""

    def __init__(self, answer: GeneratedText) -> None:
        self._answer = answer
        self._is_done = False

    def encode(self, items: list[InferItem]) -> bytes:
        events = []
        for item in items:
            if self.failure is not None or self._is_done:
                break
            try:
                events.append(self._event(item))
            except CorosrvError as error:
                self.failure = error
                events.append(self.encode_error(error))
        return b"".join(events)

    def _event(self, item: InferItem) -> bytes:
        if isinstance(item, InferOutputs):
            self._is_done = item.is_final
            return _event(self._answer.piece(item) | {"done": item.is_final})
        if item.error is not None:
            raise item.error
        self._is_done = True
        return _event(self._answer.end() | {"done": True})

    def encode_error(self, error: CorosrvError) -> bytes:
        return _event(error_body(error))


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
