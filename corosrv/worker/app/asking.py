"""Calls that a handler makes itself: what it asks for, and the errors it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from corosrv.errors import (
    CallCancelled,
    CallRefused,
    Conflict,
    CorosrvError,
    DeadlinePassed,
    ErrorKind,
    HandlerFailed,
    InvalidTensor,
    NotFound,
    Unavailable,
    WorkerLost,
)
from corosrv.tensors import Parameter, Tensor
from corosrv.tensors.arrays import is_array
from corosrv.worker.app.messages import ModelInferResponse


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """One call as a handler asks for it. Either `model` or `capability` is there."""

    inputs: Sequence[Tensor]
    model: str = ""
    version: str = ""
    capability: Mapping[str, object] | None = None
    prefer: Mapping[str, float] | None = None
    is_fuzzy: bool = False
    parameters: Mapping[str, Parameter] | None = None
    outputs: Sequence[str] | None = None
    timeout_ms: float | None = None
    priority: int | None = None
    stream: bool = False


class Caller(Protocol):
    """Makes calls for a handler that is no coroutine."""

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        """Yields the answers; closing the iterator cancels the call. Waits. Raises the errors of error_of()."""


class AsyncCaller(Protocol):
    """Makes calls for a coroutine."""

    def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        """Yields the answers; closing the iterator cancels the call. Raises the errors of error_of()."""


_CLASSES: dict[ErrorKind, type[CorosrvError]] = {
    ErrorKind.INVALID_REQUEST: CallRefused,
    ErrorKind.CONTEXT_EXCEEDED: CallRefused,
    ErrorKind.TOO_LARGE: CallRefused,
    ErrorKind.NOT_OFFERED: CallRefused,
    ErrorKind.NOT_FOUND: NotFound,
    ErrorKind.UNAVAILABLE: Unavailable,
    ErrorKind.RATE_LIMITED: Unavailable,
    ErrorKind.CLIENT_GONE: CallCancelled,
    ErrorKind.CONFLICT: Conflict,
    ErrorKind.DEADLINE_PASSED: DeadlinePassed,
    ErrorKind.WORKER_LOST: WorkerLost,
}
_KINDS = {kind.value: kind for kind in ErrorKind}


def error_of(
    status: int, error_kind: str, message: str, code: str | None = None, retry_after: int | None = None
) -> CorosrvError:
    """Returns the error that a server has answered with, as an author knows it: HandlerFailed for the unknown."""
    kind = _KINDS.get(error_kind, ErrorKind.FAILED)
    error = _CLASSES.get(kind, HandlerFailed)(message)
    error.status = status
    error.kind = kind
    error.code = code
    error.retry_after = retry_after
    return error


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
    """Returns the call of these arguments. Raises TypeError for wrong ones, and InvalidTensor."""
    if (model is None) == (capability is None):
        raise TypeError("context.call needs either a `model` or a `capability`, and not both")
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


def tensor_of(name: str, content: Any) -> Tensor:
    """Returns an input: a Tensor by this name, or what an array or a flat list holds. Raises InvalidTensor.

    Integers of a list become INT64, other numbers FP64, texts and bytes BYTES.
    """
    if isinstance(content, Tensor):
        return Tensor.from_checked(name, content.datatype, content.shape, content.raw, content.parameters)
    if is_array(content):
        return Tensor(name, _datatype_of_array(name, content), [int(size) for size in content.shape], content)
    if not isinstance(content, (list, tuple)):
        raise InvalidTensor(name, f"needs a Tensor, an array or a flat list, and no {type(content).__name__}")
    return Tensor(name, _datatype_of_list(name, content), [len(content)], content)


def _datatype_of_list(name: str, content: Sequence[Any]) -> str:
    kinds = {type(element) for element in content}
    if kinds and kinds <= {bool}:
        return "BOOL"
    if kinds and kinds <= {int}:
        return "INT64"
    if kinds and kinds <= {int, float}:
        return "FP64"
    if kinds and kinds <= {str, bytes}:
        return "BYTES"
    raise InvalidTensor(name, "is a list that does not tell its datatype: pass a Tensor")


def _datatype_of_array(name: str, array: Any) -> str:
    kind, n_bits = array.dtype.kind, 8 * array.dtype.itemsize
    if kind in "iu":
        return f"{'U' if kind == 'u' else ''}INT{n_bits}"
    if kind == "f" and n_bits <= 64:
        return f"FP{n_bits}"
    if kind in "bOSU":
        return "BOOL" if kind == "b" else "BYTES"
    raise InvalidTensor(name, f"is an array of {array.dtype.name}, which is no datatype of a tensor")
