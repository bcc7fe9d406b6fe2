"""The base class and decorators for authors of predictors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from corosrv.workers.worker.scope import Scope, current_scope

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

# What the decorators leave on a function, for corosrv.workers.worker.signatures.defaults.
STREAMING = "__corosrv_streaming__"
CONCURRENT = "__corosrv_concurrent__"


class CancelationException(BaseException):
    """Raised in a sync prediction that is to end. Clean up, and raise it again.

    No Exception, so that `except Exception` lets it pass. An async prediction gets asyncio.CancelledError instead.
    """


class BaseRunner:
    """A predictor: derive from it and define `run`, and `setup` and `healthcheck` where they are of use.

    There is one object of it in a worker, and it lives as long as the worker does. A class that defines the older
    `predict` in place of `run` is as good; one that defines both is refused.
    """

    def setup(self) -> None:
        """Prepares the predictor, once, before anything is predicted. May be a coroutine, and may take `weights`."""

    @property
    def scope(self) -> Scope:
        """The running prediction's."""
        return current_scope()

    def record_metric(self, name: str, value: Any, mode: str = "replace") -> None:
        """Records a metric of the prediction. `mode`: replace, incr or append. See Metrics.record."""
        current_scope().metrics.record(name, value, mode)


class BasePredictor(BaseRunner):
    """BaseRunner's older name."""


@overload
def streaming(function: AnyFunction) -> AnyFunction: ...
@overload
def streaming(function: None = None) -> Callable[[AnyFunction], AnyFunction]: ...
def streaming(function: Any = None) -> Any:
    """Streams what `run` yields to clients as events, while it goes on."""

    def mark(function: AnyFunction) -> AnyFunction:
        setattr(function, STREAMING, True)
        return function

    return mark if function is None else mark(function)


@overload
def concurrent(function: AnyFunction) -> AnyFunction: ...
@overload
def concurrent(function: None = None, *, max: int = 1) -> Callable[[AnyFunction], AnyFunction]: ...
def concurrent(function: Any = None, *, max: int = 1) -> Any:
    """Sets how many predictions an async `run` takes at once, unless the operator sets it."""
    if isinstance(max, bool) or not isinstance(max, int):
        raise TypeError(f"concurrent(max=...) must be an integer, not {max!r}")
    if max < 1:
        raise ValueError(f"concurrent(max=...) must be at least 1, not {max}")

    def mark(function: AnyFunction) -> AnyFunction:
        setattr(function, CONCURRENT, max)
        return function

    return mark if function is None else mark(function)
