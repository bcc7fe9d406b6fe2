"""One prediction's inputs: converts JSON values to the types of the predictor's annotations, and fetches files."""

from __future__ import annotations

import copy
import io
import math
import os
from enum import Enum
from types import TracebackType
from typing import Any

from corosrv.base.errors import InputFailed
from corosrv.workers.worker.signatures.shapes import (
    AnyObject,
    AnyOf,
    Anything,
    Coded,
    DictOf,
    Fetched,
    Hidden,
    ListOf,
    Nullable,
    OneOf,
    Scalar,
    Shape,
)
from corosrv.workers.worker.signatures.signature import InputField, Signature
from corosrv.workers.worker.types import MISSING
from corosrv.workers.worker.values.addresses import is_address
from corosrv.workers.worker.values.fetching import Fetching


class Inputs:
    """The inputs of one prediction, and its directory's `inputs` with their files, until they are closed.

    `prepare` may be called once, from any thread, and `cancel` from any other meanwhile. Used as a context manager it
    closes what was opened and removes the files.
    """

    def __init__(self, signature: Signature, directory: str, agent: str | None = None) -> None:
        """`agent`: the User-Agent of downloads."""
        self._signature = signature
        self._fetching = Fetching(os.path.join(directory, "inputs"), agent)
        self._opened: list[io.IOBase] = []

    def prepare(self, input: dict[str, Any]) -> dict[str, Any]:
        """Makes the predictor's keyword arguments. Waits for downloads. Raises InputFailed, also when cancelled.

        Inputs that are missing get their defaults; unknown ones are dropped.
        """
        converted = {field.name: self._convert(field, input) for field in self._signature.inputs}
        paths = self._fetching.run()
        return {name: self._with_files(value, paths) for name, value in converted.items()}

    def cancel(self) -> None:
        """Ends a `prepare` that waits. Any thread may call it. Later calls do nothing."""
        self._fetching.cancel()

    def close(self) -> None:
        """Closes opened files, and removes fetched ones. Later calls do nothing."""
        for file in self._opened:
            file.close()
        self._opened.clear()
        self._fetching.remove()

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _convert(self, field: InputField, input: dict[str, Any]) -> Any:
        """Converts the value of one input; a `_PendingFile` stands for each file."""
        value = input[field.name] if field.name in input else copy.deepcopy(field.default)
        if value is MISSING:
            if field.is_required:
                raise InputFailed(f"{field.name}: is required")
            return None
        is_default = value == field.default
        return _InputConversion(field, is_default, self._fetching).value(field.shape, value)

    def _with_files(self, value: Any, paths: list[str]) -> Any:
        """Replaces each `_PendingFile` by its file."""
        match value:
            case _PendingFile():
                return self._make(value.shape, value.path or paths[value.number])
            case list():
                return [self._with_files(member, paths) for member in value]
            case dict():
                return {key: self._with_files(member, paths) for key, member in value.items()}
        return value

    def _make(self, file: Fetched, path: str) -> Any:
        try:
            value = file.make(path)
        except OSError as error:
            raise InputFailed(f"the input file {path} cannot be opened: {error.strerror}") from error
        if file.is_open:
            self._opened.append(value)
        return value


class _PendingFile:
    """Stands for a file: the one that is fetched under this number, or the author's own at this path."""

    def __init__(self, shape: Fetched, number: int = -1, path: str = "") -> None:
        self.shape = shape
        self.number = number
        self.path = path


class _InputConversion:
    """Converts the value of one input. The server has checked it; a value that does not fit all the same is refused.

    `is_default`: the value is the author's default, which may name a local file; a secret's is shown as stars.
    """

    def __init__(self, field: InputField, is_default: bool, fetching: Fetching) -> None:
        self._field = field
        self._is_default = is_default
        self._fetching = fetching

    def value(self, shape: Shape, value: Any) -> Any:
        match shape:
            case Nullable(inner):
                return None if value is None else self.value(inner, value)
            case Scalar(kind):
                return self._scalar(kind, value)
            case OneOf(values, enum):
                return self._choice(values, enum, value)
            case ListOf(item) if isinstance(value, list):
                return [self.value(item, member) for member in value]
            case DictOf(inner) if isinstance(value, dict):
                return {key: self.value(inner, member) for key, member in value.items()}
            case AnyOf(members):
                return self._member(members, value)
            case Fetched() if isinstance(value, str):
                return self._file(shape, value)
            case Hidden(make) if isinstance(value, str):
                return self._secret(make, value)
            case Anything():
                return value
            case AnyObject() if isinstance(value, dict):
                return value
            case Coded(coder) if isinstance(value, dict):
                return coder.decode(value)
        raise self._misfit()

    def _scalar(self, kind: type, value: Any) -> Any:
        if kind is float and type(value) is int and abs(value) < 2**1023:
            return float(value)
        if kind is int and type(value) is float and math.isfinite(value) and value.is_integer():
            return int(value)
        if type(value) is not kind:
            raise self._misfit()
        return value

    def _choice(self, values: tuple[Any, ...], enum: type[Enum] | None, value: Any) -> Any:
        for choice in values:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice if enum is None else enum(choice)
        raise self._misfit()

    def _member(self, members: tuple[Shape, ...], value: Any) -> Any:
        """Converts to the first member that the value fits; a member of its own type comes before others."""
        for member in sorted(members, key=lambda member: member != Scalar(type(value))):
            try:
                return self.value(member, value)
            except InputFailed:
                continue
        raise self._misfit()

    def _file(self, shape: Fetched, value: str) -> _PendingFile:
        if is_address(value):
            return _PendingFile(shape, number=self._fetching.add(self._field.name, value))
        if not self._is_default:
            raise InputFailed(f"{self._field.name}: has to be an http, https or data URL")
        return _PendingFile(shape, path=value)

    def _secret(self, make: Any, value: str) -> Any:
        default = self._field.info.default
        if not self._is_default:
            return make(value)
        return make(default) if isinstance(default, str) else default

    def _misfit(self) -> InputFailed:
        return InputFailed(f"{self._field.name}: the value has another type than the input")
