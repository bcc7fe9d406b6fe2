"""Types for the annotations of predictors: inputs and their limits, files, secrets, outputs of several fields."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

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
