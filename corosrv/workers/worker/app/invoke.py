"""Calls handlers of every kind, the same way in worker processes and in tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from corosrv.base.errors import InvalidTensor, OutputFailed
from corosrv.workers.worker.app.answers import answer_of, answers_of
from corosrv.workers.worker.app.handler_kind import HandlerKind
from corosrv.workers.worker.app.messages import ModelInferRequest, ModelInferResponse
from corosrv.workers.worker.app.pools import BoundHandler

Answers = list[ModelInferResponse | BaseException]
Send = Callable[[ModelInferResponse], object]  # of one answer; may wait, and raises where the request must end
SendAsync = Callable[[ModelInferResponse], Awaitable[object]]


class AnswerStream:
    """Is the third argument of a function with a stream."""

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
