"""The second argument of handlers: what their request is part of, whether it is still wanted, and calls of their own.

`Caller` and `AsyncCaller` are the contracts of whoever makes those calls: the server, or a test.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from corosrv.base.errors import HandlerFailed, NotOffered
from corosrv.contracts.jobs.infer import ObjRef
from corosrv.contracts.jobs.terms import FIRST_PRIORITY, LAST_PRIORITY
from corosrv.formats.tensors import Parameter, Tensor
from corosrv.workers.worker.app.messages import EndSignal, ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, Objects, input_of
from corosrv.workers.worker.app.typed_values import tensor_of


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """Describes one call as a handler asks for it. Either `model` or `capability` is there."""

    inputs: Sequence[Tensor]
    model: str = ""
    version: str = ""
    capability: Mapping[str, object] | None = None
    prefer: Mapping[str, float] | None = None
    is_fuzzy: bool = False
    parameters: Mapping[str, Parameter] | None = None
    outputs: Sequence[str] | None = None
    timeout_ms: float | None = None
    priority: int | None = None  # None: that of the call that makes it
    stream: bool = False


class Caller(Protocol):
    """Makes calls for a handler that is no coroutine."""

    @property
    def objects(self) -> Objects:
        """The objects of the server."""

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        """Yields the answers; closing the iterator cancels the call. Waits. Raises what call_errors says."""


class AsyncCaller(Protocol):
    """Makes calls for a coroutine."""

    @property
    def objects(self) -> AsyncObjects:
        """The objects of the server."""

    def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        """Yields the answers; closing the iterator cancels the call. Raises what call_errors says."""


def make_call(
    *,
    inputs: Mapping[str, Any] | None = None,
    model: str | None = None,
    version: str | None = None,
    capability: Mapping[str, object] | None = None,
    prefer: Mapping[str, float] | None = None,
    fuzzy: bool = False,
    parameters: Mapping[str, Parameter] | None = None,
    outputs: Sequence[str] | None = None,
    timeout_ms: float | None = None,
    priority: int | None = None,
    stream: bool = False,
) -> OutgoingCall:
    """Returns the call of these arguments. Raises TypeError and ValueError for wrong ones, and InvalidTensor."""
    if (model is None) == (capability is None):
        raise TypeError("context.call needs either a `model` or a `capability`, and not both")
    if priority is not None and (type(priority) is not int or not FIRST_PRIORITY <= priority <= LAST_PRIORITY):
        raise ValueError(f"`priority` must be from {FIRST_PRIORITY} (first) to {LAST_PRIORITY}, not {priority!r}")
    return OutgoingCall(
        [tensor_of(name, content) for name, content in (inputs or {}).items()],
        model or "",
        version or "",
        capability,
        prefer,
        fuzzy,
        parameters,
        outputs,
        timeout_ms,
        priority,
        stream,
    )


AnyCaller = TypeVar("AnyCaller")


class _CallContext(Generic[AnyCaller]):
    """Describes one running request."""

    def __init__(
        self,
        signal: EndSignal,
        *,
        request_id: str = "",
        worker_id: str = "",
        attempt: int = 1,
        caller: AnyCaller | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        self._signal = signal
        self._caller = caller
        self.request_id = request_id
        self.worker_id = worker_id
        self.attempt = attempt  # 1, and more where the call was lost with another worker before
        self.trace_headers = dict(trace_headers or {})  # traceparent, tracestate; empty where requests are not traced

    @property
    def deadline(self) -> float | None:
        """The time on time.monotonic() after which nobody waits for the answer; None: no limit."""
        return self._signal.deadline

    def remaining(self) -> float | None:
        """Returns the seconds until the deadline, at least 0; None without one."""
        return self._signal.remaining()

    @property
    def cancelled(self) -> bool:
        """True once the request must end: the client is gone, or the deadline has passed."""
        return self._signal.error() is not None

    def check(self) -> None:
        """Raises Cancelled or DeadlineExceeded if the request must end."""
        self._signal.check()

    def _caller_or_error(self) -> AnyCaller:
        if self._caller is None:
            raise NotOffered("nothing here makes calls for handlers")
        return self._caller

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines have the request's id, and go where its printed text goes."""
        return _RequestLog(_logger(), {"request_id": self.request_id})


class Context(_CallContext[Caller]):
    """The context of plain functions, generators and functions with a stream.

    `request_id`: the client's name for the call, or one of the server's. `worker_id`: which worker process this is.
    `attempt`: 1, and more where the call was lost with another worker before. `trace_headers`: `traceparent` and
    `tracestate` of the request, by which OpenTelemetry's propagators go on with its trace.
    """

    def sleep(self, seconds: float) -> None:
        """Waits. Raises Cancelled or DeadlineExceeded as soon as the request must end."""
        self._signal.wait(seconds)

    def call(
        self,
        *,
        model: str | None = None,
        capability: Mapping[str, object] | None = None,
        inputs: Mapping[str, Any] | None = None,
        timeout_ms: float | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """Calls another model, or a capability, through the server, and waits for its answer.

        `inputs`: tensors, arrays, lists or references to objects, by their names. `stream`: returns an iterator of
        the answers as they come, which cancels the call when it is closed. `options`: version, prefer, fuzzy,
        parameters, outputs and priority, which is that of the request if it is not given. The call ends at the deadline
        of the request, if not before, and when the request does.

        Raises InvalidInput, NotFound, Unavailable, Conflict (a circle of calls), DeadlineExceeded, Cancelled,
        WorkerLost and HandlerFailed. One that a handler does not catch is its own.
        """
        values = {name: self._resolve(name, content) for name, content in (inputs or {}).items()}
        call = make_call(
            model=model, capability=capability, inputs=values, timeout_ms=timeout_ms, stream=stream, **options
        )
        answers = self._caller_or_error().call(call)
        return answers if stream else _only(answers)

    @property
    def objects(self) -> Objects:
        """The objects of the server."""
        return self._caller_or_error().objects

    def _resolve(self, name: str, content: Any) -> Any:
        return input_of(name, self.objects.get(content)) if isinstance(content, ObjRef) else content


class AsyncContext(_CallContext[AsyncCaller]):
    """The context of coroutine functions and async generators, where what waits is awaited.

    A cancel is raised there as asyncio.CancelledError, at the `await` that the handler waits at.
    """

    async def sleep(self, seconds: float) -> None:
        """Waits. Raises Cancelled or DeadlineExceeded as soon as the request must end."""
        import asyncio  # plain handlers do without: it takes longer to import than all the rest

        self.check()
        remaining = self.remaining()
        await asyncio.sleep(seconds if remaining is None else min(seconds, remaining))
        self.check()

    async def call(
        self,
        *,
        model: str | None = None,
        capability: Mapping[str, object] | None = None,
        inputs: Mapping[str, Any] | None = None,
        timeout_ms: float | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """Calls another model, or a capability, as Context.call does; with `stream` it returns an async iterator."""
        values = {name: await self._resolve(name, content) for name, content in (inputs or {}).items()}
        call = make_call(
            model=model, capability=capability, inputs=values, timeout_ms=timeout_ms, stream=stream, **options
        )
        answers = self._caller_or_error().call(call)
        return answers if stream else await _only_async(answers)

    @property
    def objects(self) -> AsyncObjects:
        """The objects of the server."""
        return self._caller_or_error().objects

    async def _resolve(self, name: str, content: Any) -> Any:
        return input_of(name, await self.objects.get(content)) if isinstance(content, ObjRef) else content


def _only(answers: Iterator[ModelInferResponse]) -> ModelInferResponse:
    """Returns the one answer of a call that does not stream, and reads to its end. Raises why it failed."""
    return _last(list(answers))


async def _only_async(answers: AsyncIterator[ModelInferResponse]) -> ModelInferResponse:
    return _last([answer async for answer in answers])


def _last(answers: list[ModelInferResponse]) -> ModelInferResponse:
    if not answers:
        raise HandlerFailed("the call ended without an answer")
    return answers[-1]


class _RequestLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        request_id: Mapping[str, object] = self.extra or {}
        return f"[{request_id['request_id']}] {msg}", kwargs


class _ErrorStream(logging.Handler):
    """Writes to the current sys.stderr, which attributes the text to its request."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def _logger() -> logging.Logger:
    """Returns the logger of all handlers, which no configuration of the author's changes."""
    global _handler_log
    if _handler_log is None:
        handler = _ErrorStream()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        _handler_log = logging.Logger("corosrv.handler", logging.INFO)  # not of the tree of loggers
        _handler_log.addHandler(handler)
    return _handler_log


_handler_log: logging.Logger | None = None
