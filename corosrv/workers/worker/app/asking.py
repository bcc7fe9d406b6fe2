"""Describes the calls that a handler makes itself, and who makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from corosrv.contracts.jobs.job import FIRST_PRIORITY, LAST_PRIORITY
from corosrv.formats.tensors import Parameter, Tensor
from corosrv.workers.worker.app.inputs import tensor_of
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, Objects


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
