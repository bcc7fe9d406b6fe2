"""One prediction's inputs: JSON values to what the predictor was annotated with, and the files that come of them."""

from __future__ import annotations

import copy
import io
import math
import os
from enum import Enum
from types import TracebackType
from typing import Any

from corosrv.errors import InputFailed
from corosrv.worker.signatures.shapes import (
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
    Plain,
    Shape,
)
from corosrv.worker.signatures.signature import InputField, Signature
from corosrv.worker.types import MISSING
from corosrv.worker.values.addresses import is_address
from corosrv.worker.values.fetching import Fetching


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

    def prepare(self, given: dict[str, Any]) -> dict[str, Any]:
        """The predictor's keyword arguments. Waits for downloads. Raises InputFailed, also when it was cancelled.

        What `given` lacks gets its default; what it has too much is left out.
        """
        converted = {field.name: self._convert(field, given) for field in self._signature.inputs}
        paths = self._fetching.run()
        return {name: self._finished(value, paths) for name, value in converted.items()}

    def cancel(self) -> None:
        """Ends a `prepare` that waits. From any thread; twice is harmless."""
        self._fetching.cancel()

    def close(self) -> None:
        """Twice is harmless."""
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

    def _convert(self, field: InputField, given: dict[str, Any]) -> Any:
        """With an `_Awaited` wherever a file has to come."""
        value = given[field.name] if field.name in given else copy.deepcopy(field.default)
        if value is MISSING:
            if field.is_required:
                raise InputFailed(f"{field.name}: is required")
            return None
        is_default = value == field.default
        return _Conversion(field, is_default, self._fetching).value(field.shape, value)

    def _finished(self, value: Any, paths: list[str]) -> Any:
        """With the files in."""
        match value:
            case _Awaited():
                return self._made(value.of, value.path or paths[value.number])
            case list():
                return [self._finished(member, paths) for member in value]
            case dict():
                return {key: self._finished(member, paths) for key, member in value.items()}
        return value

    def _made(self, of: Fetched, path: str) -> Any:
        try:
            made = of.make(path)
        except OSError as error:
            raise InputFailed(f"the input file {path} cannot be opened: {error.strerror}") from error
        if of.is_open:
            self._opened.append(made)
        return made


class _Awaited:
    """Stands for a file: one that is fetched under this number, or the author's own at this path."""

    def __init__(self, of: Fetched, number: int = -1, path: str = "") -> None:
        self.of = of
        self.number = number
        self.path = path


class _Conversion:
    """One field's. The server has checked the values; what does not fit here all the same is refused, not guessed at.

    `is_default`: the value is the author's default, which may name a file here, and a secret's stars stand for it.
    """

    def __init__(self, field: InputField, is_default: bool, fetching: Fetching) -> None:
        self._field = field
        self._is_default = is_default
        self._fetching = fetching

    def value(self, shape: Shape, value: Any) -> Any:
        match shape:
            case Nullable(of):
                return None if value is None else self.value(of, value)
            case Plain(kind):
                return self._plain(kind, value)
            case OneOf(values, enum):
                return self._choice(values, enum, value)
            case ListOf(item) if isinstance(value, list):
                return [self.value(item, member) for member in value]
            case DictOf(of) if isinstance(value, dict):
                return {key: self.value(of, member) for key, member in value.items()}
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

    def _plain(self, kind: type, value: Any) -> Any:
        if kind is float and type(value) is int and abs(value) < 2**1023:
            return float(value)
        if kind is int and type(value) is float and math.isfinite(value) and value.is_integer():
            return int(value)
        if type(value) is not kind:
            raise self._misfit()
        return value

    def _choice(self, values: tuple[Any, ...], enum: type[Enum] | None, value: Any) -> Any:
        for known in values:
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return known if enum is None else enum(known)
        raise self._misfit()

    def _member(self, members: tuple[Shape, ...], value: Any) -> Any:
        """As the first member that the value fits, a type of its very own before one that it is converted to."""
        for member in sorted(members, key=lambda member: member != Plain(type(value))):
            try:
                return self.value(member, value)
            except InputFailed:
                continue
        raise self._misfit()

    def _file(self, shape: Fetched, value: str) -> _Awaited:
        if is_address(value):
            return _Awaited(shape, number=self._fetching.add(self._field.name, value))
        if not self._is_default:
            raise InputFailed(f"{self._field.name}: has to be an http, https or data URL")
        return _Awaited(shape, path=value)

    def _secret(self, make: Any, value: str) -> Any:
        default = self._field.info.default
        if not self._is_default:
            return make(value)
        return make(default) if isinstance(default, str) else default

    def _misfit(self) -> InputFailed:
        return InputFailed(f"{self._field.name}: the value has another type than the input")
