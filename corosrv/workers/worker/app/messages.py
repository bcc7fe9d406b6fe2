"""Defines what a handler gets, what it gives back, and the signal that its request is cancelled or late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corosrv.base.errors import CallCancelled, CallRefused, DeadlinePassed
from corosrv.formats.tensors import Parameter, Tensor


@dataclass(frozen=True)
class ModelInferRequest:
    """Holds one request. `requested_outputs`: the names that the client asked for; None: all of them."""

    inputs: Sequence[Tensor] = ()
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    requested_outputs: Sequence[str] | None = None

    def get_input(self, name: str) -> Tensor | None:
        """Returns the input of this name, or None."""
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def __getitem__(self, name: str) -> Tensor:
        """Returns the input of this name. Raises InvalidInput, which the client sees, if the request lacks it."""
        if (tensor := self.get_input(name)) is None:
            raise CallRefused(f"the input {name!r} is missing")
        return tensor


class ModelInferResponse:
    """Holds one answer. `final`: True says that no answer follows; None leaves it open.

    `model_name` and `model_version` say who answered a handler's own call. What a handler puts there is ignored.
    """

    def __init__(
        self,
        outputs: Iterable[Tensor] = (),
        parameters: Mapping[str, Parameter] | None = None,
        final: bool | None = None,
        *,
        model_name: str = "",
        model_version: str = "",
    ) -> None:
        self.outputs = list(outputs)
        self.parameters: dict[str, Parameter] = dict(parameters or {})
        self.final = final
        self.model_name = model_name
        self.model_version = model_version

    def add_output(
        self, name: str, datatype: str, shape: Sequence[int], data: Any = None, raw: bytes | memoryview | None = None
    ) -> None:
        """Adds a tensor of flat `data` or of `raw` bytes. Raises InvalidTensor."""
        self.outputs.append(Tensor(name, datatype, shape, data, raw))

    def get_output(self, name: str) -> Tensor | None:
        """Returns the output of this name, or None."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)

    def __getitem__(self, name: str) -> Tensor:
        """Returns the output of this name. Raises KeyError if the answer lacks it."""
        if (tensor := self.get_output(name)) is None:
            raise KeyError(name)
        return tensor

    def __repr__(self) -> str:
        return f"ModelInferResponse({self.outputs!r}, {self.parameters!r}, final={self.final})"


class EndSignal:
    """Says whether a request is still wanted. Any thread."""

    def __init__(self, deadline: float | None = None) -> None:
        """`deadline`: of time.monotonic()."""
        self.deadline = deadline
        self.is_set = False  # somebody has said that it must end
        self._is_deadline = False
        self._has_ended = threading.Event()
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def set(self, *, is_deadline: bool = False) -> None:
        """Says that the request must end, once; later calls do nothing."""
        with self._lock:
            if self.is_set:
                return
            self._is_deadline = is_deadline
            self.is_set = True
            listeners = list(self._listeners)
        self._has_ended.set()
        for listener in listeners:
            listener()

    def on_set(self, listener: Callable[[], object]) -> None:
        """Calls a function once, in the thread that sets the signal; at once if it is set. It must not wait."""
        with self._lock:
            if not self.is_set:
                self._listeners.append(listener)
                return
        listener()

    def remaining(self) -> float | None:
        """Returns the seconds that are left, at least 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def error(self) -> CallCancelled | DeadlinePassed | None:
        """Returns why the request must end; None if it is wanted."""
        if self.is_set and not self._is_deadline:
            return CallCancelled("the call was cancelled")
        if self.is_set or self.remaining() == 0.0:
            return DeadlinePassed("the time of the call is over")
        return None

    def check(self) -> None:
        """Raises error() if there is one."""
        error = self.error()
        if error is not None:
            raise error

    def wait(self, seconds: float) -> None:
        """Waits. Raises what check() raises, as soon as it would."""
        remaining = self.remaining()
        self._has_ended.wait(seconds if remaining is None else min(seconds, remaining))
        self.check()
