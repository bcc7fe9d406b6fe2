"""The base class and decorators for authors of predictors, and types for their annotations.

The types are for inputs and their limits, files, secrets, and outputs of several fields.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, overload

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


STARS = "*" * 10  # shown in place of a secret


class _NoDefault(Enum):
    """The default of an input that has none, since None is one."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING = _NoDefault.MISSING


@dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """An author's description of one input, beside its type. In a list, limits are those of each member."""

    default: Any = MISSING
    description: str | None = None
    ge: float | None = None
    le: float | None = None
    min_length: int | None = None  # characters
    max_length: int | None = None
    regex: str | None = None  # found anywhere in the text, unless it says ^ or $
    choices: list[Any] | None = None
    deprecated: bool | None = None
    accept: str | None = None  # of a file: MIME types and endings, as HTML's accept has them


def Input(
    default: Any = MISSING,
    *,
    description: str | None = None,
    ge: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    regex: str | None = None,
    choices: list[Any] | None = None,
    deprecated: bool | None = None,
    accept: str | None = None,
) -> Any:
    """Describes one input: `prompt: str = Input(description="What to draw", max_length=1000)`.

    Without a default the input is required, unless its type allows None. FieldInfo describes the other arguments.
    """
    return FieldInfo(
        default=default,
        description=description,
        ge=ge,
        le=le,
        min_length=min_length,
        max_length=max_length,
        regex=regex,
        choices=choices,
        deprecated=deprecated,
        accept=accept,
    )


class Path(pathlib.PosixPath):
    """A file: as an input fetched before the prediction and removed after it, as an output sent to the client."""


class File(io.BufferedReader):
    """The same as a binary file that is open for reading. A Path serves most authors better."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(io.FileIO(path))


@dataclass(frozen=True, repr=False)
class Secret:
    """A text that shows as stars wherever it is printed."""

    secret_value: str | None = None

    def get_secret_value(self) -> str | None:
        """Returns the text itself."""
        return self.secret_value

    def __str__(self) -> str:
        return "" if self.secret_value is None else STARS

    def __repr__(self) -> str:
        return f"Secret({self})"


class BaseModel:
    """An output of several fields: subclasses become dataclasses, `auto_dataclass=False` leaves that to the author.

    Other class arguments are those of `dataclasses.dataclass`.
    """

    def __init_subclass__(cls, *, auto_dataclass: bool = True, **arguments: Any) -> None:
        super().__init_subclass__()
        if auto_dataclass:
            dataclasses.dataclass(**arguments)(cls)


class _Opaque:
    """Marks a type, as `Annotated[T, Opaque]`, whose values are any JSON objects, passed on as they are."""

    def __repr__(self) -> str:
        return "Opaque"


Opaque = _Opaque()

if TYPE_CHECKING:
    # To a type checker they are what they derive from: else no generator function could be annotated with them.
    ConcatenateIterator = Iterator
    AsyncConcatenateIterator = AsyncIterator
else:
    Item = TypeVar("Item")

    class ConcatenateIterator(Iterator[Item]):
        """The return type of a generator of texts that clients should show as one text."""

        @abstractmethod
        def __next__(self) -> Item: ...

    class AsyncConcatenateIterator(AsyncIterator[Item]):
        """The same for an async generator."""

        @abstractmethod
        async def __anext__(self) -> Item: ...
