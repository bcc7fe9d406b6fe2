"""Calls handlers of every kind, the same way in worker processes and in tests, and checks what they give back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from corosrv.base.errors import InvalidTensor, OutputFailed
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.workers.worker.app.messages import ModelInferRequest, ModelInferResponse
from corosrv.workers.worker.app.pools import BoundHandler
from corosrv.workers.worker.app.typed_signature import HandlerKind
from corosrv.workers.worker.app.typed_values import flatten


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


Answers = list[ModelInferResponse | BaseException]
Send = Callable[[ModelInferResponse], object]  # of one answer; may wait, and raises where the request must end
SendAsync = Callable[[ModelInferResponse], Awaitable[object]]


class AnswerStream:
    """The third argument of a function with a stream."""

    def __init__(self, send: Callable[[Any], object]) -> None:
        self._send = send

    def send(self, response: Any) -> None:
        """Sends an answer. Waits while the client does not read. Raises Cancelled or DeadlineExceeded."""
        self._send(response)


def invoke(handler: BoundHandler, request: ModelInferRequest, context: Any, send: Send) -> None:
    """Runs a handler that is no coroutine, and sends each of its answers. Raises what it raises, and OutputFailed."""
    kind = handler.signature.kind
    if kind is HandlerKind.FUNCTION:
        send(_answer(handler, _call(handler, request, context)))
    elif kind is HandlerKind.GENERATOR:
        answers = _call(handler, request, context)
        try:
            for answer in answers:
                send(_answer(handler, answer))
        finally:
            answers.close()
    else:
        stream = AnswerStream(lambda answer: send(answer_of(handler.card, answer)))
        result = handler.function(request, context, stream)
        if result is not None:
            raise OutputFailed(f"{handler.card.name} returned a {type(result).__name__}: send it with `stream.send`")


async def invoke_async(handler: BoundHandler, request: ModelInferRequest, context: Any, send: SendAsync) -> None:
    """Runs a coroutine function or an async generator as invoke() does the others."""
    if handler.signature.kind is HandlerKind.COROUTINE:
        await send(_answer(handler, await _call(handler, request, context)))
        return
    answers = _call(handler, request, context)
    try:
        async for answer in answers:
            await send(_answer(handler, answer))
    finally:
        await answers.aclose()


def invoke_batch(handler: BoundHandler, requests: Sequence[ModelInferRequest], contexts: Sequence[Any]) -> Answers:
    """Runs a function on a batch. Returns the answer or error of each request. Raises as invoke() does."""
    return answers_of(handler.card, _call(handler, list(requests), list(contexts)), len(requests))


async def invoke_batch_async(
    handler: BoundHandler, requests: Sequence[ModelInferRequest], contexts: Sequence[Any]
) -> Answers:
    """Runs a coroutine function on a batch, as invoke_batch() does a function."""
    return answers_of(handler.card, await _call(handler, list(requests), list(contexts)), len(requests))


def _answer(handler: BoundHandler, value: Any) -> ModelInferResponse:
    typed = handler.signature.typed
    if typed is None:
        return answer_of(handler.card, value)
    try:
        return answer_of(handler.card, typed.outputs_of(handler.card.name, value))
    except InvalidTensor as error:
        raise OutputFailed(f"{handler.card.name}: {error}") from error


def _call(handler: BoundHandler, request: Any, context: Any) -> Any:
    if handler.signature.typed is not None:
        return handler.signature.typed.call(handler.function, request, context)
    return handler.function(request, context) if handler.signature.takes_context else handler.function(request)
