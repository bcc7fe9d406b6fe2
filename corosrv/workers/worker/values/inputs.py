"""One prediction's inputs: converts JSON values to the types of the predictor's annotations, and fetches files.

A few files are downloaded at once, each within a time limit.
"""

from __future__ import annotations

import copy
import io
import math
import os
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, BinaryIO

from corosrv.base.errors import InputFailed
from corosrv.workers.worker.predictor import MISSING
from corosrv.workers.worker.signatures import shapes
from corosrv.workers.worker.signatures.signature import InputField, Signature
from corosrv.workers.worker.values.addresses import DataUrl, is_address, is_data, make_private

AT_ONCE = 8
TIME_LIMIT = 60.0  # seconds, from a download's begin to its last byte


@dataclass(slots=True, eq=False)
class _Fetch:
    """One file to be fetched for the input `field`."""

    number: int
    field: str
    address: str
    path: str = ""
    ends_at: float = 0.0  # by the monotonic clock, once it runs


class Fetching:
    """The files of one prediction. `add` all, then `run`; `cancel` may be called from other threads at any time.

    `run` returns in time whatever the other side does: a download that hangs stays behind in its thread, which ends
    at its socket's time limit.
    """

    def __init__(self, directory: str, agent: str | None) -> None:
        self._directory = directory
        self._agent = agent
        self._fetches: list[_Fetch] = []
        self._changed = threading.Condition()  # guards what is below, and the fetches while threads run
        self._waiting: deque[_Fetch] = deque()
        self._running: dict[_Fetch, None] = {}  # the oldest first
        self._n_done = 0
        self._fault: InputFailed | None = None

    def add(self, field: str, address: str) -> int:
        """Returns the number under which `run` gives the file's path."""
        self._fetches.append(_Fetch(len(self._fetches), field, address))
        return len(self._fetches) - 1

    def run(self) -> list[str]:
        """Fetches all files; returns their paths in the order they were added. Waits. Raises the first InputFailed."""
        for fetch in self._fetches:
            if is_data(fetch.address):
                self._decode(fetch)
            else:
                self._waiting.append(fetch)
        for _ in range(min(AT_ONCE, len(self._waiting))):
            threading.Thread(target=self._work, name="corosrv-fetch", daemon=True).start()
        self._wait()
        return [fetch.path for fetch in self._fetches]

    def cancel(self) -> None:
        self._fail(InputFailed("cancelled while inputs were fetched"))

    def remove(self) -> None:
        """Cancels, and removes all files; none is created after that."""
        self.cancel()
        if self._fetches:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _decode(self, fetch: _Fetch) -> None:
        try:
            decoded = DataUrl.parse(fetch.address)
            with self._create(fetch, decoded.name) as file:
                file.write(decoded.content)
        except ValueError as error:
            raise InputFailed(f"{fetch.field}: {error}") from error
        except OSError as error:
            raise InputFailed(f"{fetch.field}: cannot be written: {error.strerror}") from error
        self._finish(fetch)

    def _create(self, fetch: _Fetch, name: str) -> BinaryIO:
        """Creates a fetch's file, in a directory of its own. Raises OSError; InputFailed after a fault or cancel."""
        with self._changed:
            if self._fault is not None:
                raise self._fault
            directory = os.path.join(self._directory, str(fetch.number))
            make_private(directory)
            fetch.path = os.path.join(directory, name)
            return open(fetch.path, "xb")

    def _wait(self) -> None:
        with self._changed:
            while self._fault is None and self._n_done < len(self._fetches):
                oldest = next(iter(self._running), None)
                seconds_left = oldest.ends_at - time.monotonic() if oldest else TIME_LIMIT
                if oldest and seconds_left <= 0:
                    self._fault = InputFailed(f"{oldest.field}: cannot be fetched within {TIME_LIMIT:g} s")
                else:
                    self._changed.wait(seconds_left)
            if self._fault is not None:
                raise self._fault

    def _work(self) -> None:
        """Fetches waiting files until none is left or one failed. Runs in each thread."""
        from corosrv.workers.worker.values.download import download

        while (fetch := self._next()) is not None:
            try:
                download(fetch.address, partial(self._create, fetch), self._agent, fetch.ends_at, self._is_over)
            except InputFailed as error:
                self._fail(InputFailed(f"{fetch.field}: {error}"))
            except Exception as error:  # whatever the HTTP library raises, `run` must not wait for this file for ever
                self._fail(InputFailed(f"{fetch.field}: cannot be fetched: {type(error).__name__}: {error}"))
            else:
                self._finish(fetch)

    def _next(self) -> _Fetch | None:
        with self._changed:
            if self._fault is not None or not self._waiting:
                return None
            fetch = self._waiting.popleft()
            fetch.ends_at = time.monotonic() + TIME_LIMIT
            self._running[fetch] = None
            self._changed.notify_all()
            return fetch

    def _finish(self, fetch: _Fetch) -> None:
        with self._changed:
            self._running.pop(fetch, None)
            self._n_done += 1
            self._changed.notify_all()

    def _fail(self, fault: InputFailed) -> None:
        with self._changed:
            self._fault = self._fault or fault
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._fault is not None


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

    def __exit__(self, *error: object) -> None:
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

    def _make(self, file: shapes.Fetched, path: str) -> Any:
        try:
            value = file.make(path)
        except OSError as error:
            raise InputFailed(f"the input file {path} cannot be opened: {error.strerror}") from error
        if file.is_open:
            self._opened.append(value)
        return value


class _PendingFile:
    """Stands for a file: the one that is fetched under this number, or the author's own at this path."""

    def __init__(self, shape: shapes.Fetched, number: int = -1, path: str = "") -> None:
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

    def value(self, shape: shapes.Shape, value: Any) -> Any:
        match shape:
            case shapes.Nullable(inner):
                return None if value is None else self.value(inner, value)
            case shapes.Scalar(kind):
                return self._scalar(kind, value)
            case shapes.OneOf(values, enum):
                return self._choice(values, enum, value)
            case shapes.ListOf(item) if isinstance(value, list):
                return [self.value(item, member) for member in value]
            case shapes.DictOf(inner) if isinstance(value, dict):
                return {key: self.value(inner, member) for key, member in value.items()}
            case shapes.AnyOf(members):
                return self._member(members, value)
            case shapes.Fetched() if isinstance(value, str):
                return self._file(shape, value)
            case shapes.Hidden(make) if isinstance(value, str):
                return self._secret(make, value)
            case shapes.Anything():
                return value
            case shapes.AnyObject() if isinstance(value, dict):
                return value
            case shapes.Coded(coder) if isinstance(value, dict):
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

    def _member(self, members: tuple[shapes.Shape, ...], value: Any) -> Any:
        """Converts to the first member that the value fits; a member of its own type comes before others."""
        for member in sorted(members, key=lambda member: member != shapes.Scalar(type(value))):
            try:
                return self.value(member, value)
            except InputFailed:
                continue
        raise self._misfit()

    def _file(self, shape: shapes.Fetched, value: str) -> _PendingFile:
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
