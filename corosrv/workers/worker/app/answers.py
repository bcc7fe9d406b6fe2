"""Checks what handlers give back, and makes answers of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corosrv.base.errors import InvalidTensor, OutputFailed
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.workers.worker.app.inputs import flatten
from corosrv.workers.worker.app.messages import ModelInferResponse


def answer_of(card: HandlerCard, value: Any) -> ModelInferResponse:
    """Returns what a handler gave back as an answer. Raises OutputFailed, which names the handler."""
    try:
        if isinstance(value, ModelInferResponse):
            return _checked(card, value)
        if isinstance(value, Mapping):
            outputs = [_tensor(card, name, content) for name, content in value.items()]
            return _checked(card, ModelInferResponse(outputs))
    except InvalidTensor as error:
        raise OutputFailed(f"{card.name}: {error}") from error
    raise OutputFailed(
        f"{card.name} returned a {type(value).__name__}: "
        "return a ModelInferResponse, or a dict of output names to lists, arrays or tensors"
    )


def answers_of(card: HandlerCard, values: Any, n_requests: int) -> list[ModelInferResponse | BaseException]:
    """Returns the answers or errors of a batch. Raises OutputFailed unless there are as many as requests."""
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise OutputFailed(f"{card.name} returned a {type(values).__name__} for a batch: return a list")
    if len(values) != n_requests:
        raise OutputFailed(f"{card.name} returned {len(values)} answers for a batch of {n_requests} requests")
    return [_answer_or_error(card, value) for value in values]


def _answer_or_error(card: HandlerCard, value: Any) -> ModelInferResponse | BaseException:
    if isinstance(value, BaseException):
        return value
    try:
        return answer_of(card, value)
    except OutputFailed as error:
        return error


def _checked(card: HandlerCard, response: ModelInferResponse) -> ModelInferResponse:
    names = set()
    for tensor in response.outputs:
        if not isinstance(tensor, Tensor):
            raise OutputFailed(f"{card.name} has an output that is a {type(tensor).__name__} and no Tensor")
        if tensor.name in names:
            raise OutputFailed(f"{card.name} has two outputs of the name {tensor.name!r}")
        names.add(tensor.name)
        if card.outputs:
            _check_declared(card, tensor)
    for name, value in response.parameters.items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            raise OutputFailed(f"{card.name} has the parameter {name!r}: {value!r:.80}, which is no scalar")
    if response.final not in (None, True, False):
        raise OutputFailed(f"{card.name} has an answer with final={response.final!r:.80}: say True, False or None")
    return response


def _check_declared(card: HandlerCard, tensor: Tensor) -> None:
    spec = _spec(card, tensor.name)
    if tensor.datatype != spec.datatype:
        raise OutputFailed(f"{card.name}: output {tensor.name!r} is {tensor.datatype}, and declared as {spec.datatype}")
    if not spec.allows(tensor.shape):
        shapes = f"{list(tensor.shape)}, and declared as {list(spec.shape)}"
        raise OutputFailed(f"{card.name}: output {tensor.name!r} has the shape {shapes}")


def _spec(card: HandlerCard, name: Any) -> TensorSpec:
    """Returns the declaration of an output. Raises OutputFailed."""
    for spec in card.outputs:
        if spec.name == name:
            return spec
    if not card.outputs:
        raise OutputFailed(
            f"{card.name} declares no outputs, so the datatype of {name!r} is not known: declare it, or return a Tensor"
        )
    raise OutputFailed(f"{card.name} returned the output {name!r}, which it does not declare")


def _tensor(card: HandlerCard, name: Any, content: Any) -> Tensor:
    if isinstance(content, Tensor):
        if content.name == name:
            return content
        return Tensor(name, content.datatype, content.shape, raw=content.raw, parameters=content.parameters)
    spec = _spec(card, name)
    if isinstance(content, (str, bytes)) or not hasattr(content, "__len__") or isinstance(content, Mapping):
        kind = type(content).__name__
        raise OutputFailed(f"{card.name}: output {name!r} is a {kind}: return a list, an array or a Tensor")
    if isinstance(content, (list, tuple)):
        nested_shape, elements = flatten(name, content)
        if len(nested_shape) > 1:
            return Tensor(name, spec.datatype, nested_shape, data=elements)
    shape = getattr(content, "shape", None)
    if shape is None:
        return Tensor(name, spec.datatype, _inferred(card, spec, len(content)), data=content)
    return Tensor(name, spec.datatype, [int(size) for size in shape], data=content)


def _inferred(card: HandlerCard, spec: TensorSpec, n_elements: int) -> list[int]:
    """Returns the shape of a flat list. Raises OutputFailed if the declaration leaves more than one size open."""
    if list(spec.shape).count(-1) > 1:
        raise OutputFailed(
            f"{card.name}: output {spec.name!r} has several variable dimensions, which a list does not tell: "
            "return an array or a Tensor"
        )
    n_fixed = 1
    for size in spec.shape:
        n_fixed *= 1 if size == -1 else size
    inferred = n_elements // n_fixed if n_fixed else 0
    return [inferred if size == -1 else size for size in spec.shape]
