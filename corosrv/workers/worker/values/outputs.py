"""Makes messages of what a predictor returned or yielded; writes files, and values too large for a message.

A file among the outputs is copied at once, since an author may write the next one over it. Models of pydantic and the
like are known by their methods, without an import.
"""

from __future__ import annotations

import base64
import dataclasses
import decimal
import errno
import math
import mimetypes
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import date, datetime, time
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from corosrv.base.errors import OutputFailed
from corosrv.contracts.jobs.setup import FileOutput, FileRef, OutputChunk
from corosrv.workers.wire.messages import MAX_VALUE
from corosrv.workers.worker.signatures.shapes import Coder, coder_of
from corosrv.workers.worker.values.addresses import file_name, make_private


def dump_of(value: Any) -> Callable[[], Any] | None:
    """Returns the function that dumps a model to plain values, or None. It may rename, omit and add fields."""
    if isinstance(value, type | Mapping):
        return None
    # Of its class: an object may have an answer to any name.
    dump = getattr(type(value), "model_dump", None) or getattr(type(value), "dict", None)
    return (lambda: _with_secrets_kept(value, dump(value))) if callable(dump) else None


def _with_secrets_kept(model: Any, dumped: Any) -> Any:
    """Restores fields that hold secrets: a dump takes these apart like any dataclass."""
    if not isinstance(dumped, dict):
        return dumped
    fields = {name: getattr(model, name, None) for name in dumped if isinstance(name, str)}
    return dumped | {name: value for name, value in fields.items() if _holds_secret(value)}


def _holds_secret(value: Any) -> bool:
    if hasattr(value, "get_secret_value"):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_secret, value.values()))
    if isinstance(value, list | tuple | Set):
        return any(map(_holds_secret, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_holds_secret(getattr(value, field.name)) for field in dataclasses.fields(value))
    names = getattr(type(value), "model_fields", ())
    return any(_holds_secret(getattr(value, name, None)) for name in names)


Place = list[str | int]  # keys and indices that lead to a value
PutFile = Callable[[Place, Any], None]  # takes a file that stands at this place

_CONTAINERS = (dict, list, tuple, set)
MAX_DEPTH = 200  # objects and arrays within each other; readers of JSON refuse more


def is_file(value: Any) -> bool:
    """Returns whether a value is sent as a file: a path, or a file that is open for reading."""
    return isinstance(value, os.PathLike) or (callable(getattr(value, "read", None)) and not isinstance(value, type))


def jsonable(value: Any, put_file: PutFile) -> Any:
    """Converts a value to JSON; passes its files to `put_file` and leaves null in their place.

    JSON has neither NaN nor infinity: they become null, as in JavaScript. Bytes become base64. Raises OutputFailed for
    what has no JSON form, and names its place.
    """
    return _Walk(put_file).value(value, [])


class _Walk:
    """Converts one value. `place` is one list that grows and shrinks, so that only files and faults cost a copy."""

    def __init__(self, put_file: PutFile) -> None:
        self._put_file = put_file

    def value(self, value: Any, place: Place) -> Any:
        match value:
            case None | bool():
                return value
            case Enum():
                return self.value(value.value, place)
            case str():
                return _text(value)
            case int():
                return int(value)
            case float():
                return float(value) if math.isfinite(value) else None
        if is_file(value):
            self._put_file(list(place), value)
            return None
        if (scalar := _scalar(value)) is not None:
            return scalar
        return self._compound(value, place)

    def _compound(self, value: Any, place: Place) -> Any:
        if len(place) >= MAX_DEPTH:
            raise OutputFailed(f"the output is nested deeper than {MAX_DEPTH} levels, or holds itself")
        if (coder := _coder_of(value)) is not None:
            return self.value(coder.encode(value), place)
        if (dump := dump_of(value)) is not None:
            return self.value(dump(), place)
        if (fields := _fields(value)) is not None:
            return {key: self._at(key, member, place) for key, member in fields}
        if isinstance(value, Iterable) and isinstance(value, list | tuple | Set | Iterator):
            return [self._at(index, member, place) for index, member in enumerate(value)]
        if callable(to_list := getattr(value, "tolist", None)):  # arrays and numbers of numpy, tensors
            return self.value(to_list(), place)
        where = f" at {_dotted(place)}" if place else ""
        raise OutputFailed(f"the output{where} is of type {type(value).__name__}, which has no JSON form")

    def _at(self, key: str | int, member: Any, place: Place) -> Any:
        place.append(key)
        result = self.value(member, place)
        place.pop()
        return result


def _text(text: str) -> str:
    """Replaces half surrogates, as in file names that are not UTF-8: JSON cannot hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)


def _scalar(value: Any) -> str | None:
    match value:
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case decimal.Decimal() | uuid.UUID():
            return str(value)
    return str(value) if hasattr(value, "get_secret_value") else None


def _fields(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Returns the members of a value that becomes an object; None for other values."""
    if isinstance(value, Mapping):
        return ((_key(key), member) for key, member in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return None


def _coder_of(value: Any) -> Coder | None:
    return None if type(value) in _CONTAINERS else coder_of(type(value))


def _key(key: Any) -> str:
    match key:
        case Enum():
            return _key(key.value)
        case str():
            return _text(key)
        case None | bool():
            return {None: "null", True: "true", False: "false"}[key]
        case int() | float():
            return str(key)
    raise OutputFailed(f"the output has an object with a key of type {type(key).__name__}, where JSON has only texts")


def _dotted(place: Place) -> str:
    keys = ".".join(str(key)[:40] for key in islice(place, 8))
    return keys + ("..." if len(place) > 8 else "")


_PIECE = 1 << 20  # bytes


class OutputFiles:
    """The directory of a prediction's output files, as one of its chunks uses it. No two of its files share a name."""

    def __init__(self, directory: str, index: int) -> None:
        self._directory = directory
        self._index = index

    def keep(self, file: Any) -> tuple[str, str]:
        """Copies a path's or open file's content; returns the copy's name and MIME type. Raises OutputFailed."""
        name = _name_of(file)
        mime_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        try:
            with self._create(name) as target:
                for piece in _pieces(file):
                    target.write(piece)
                return os.path.basename(target.name), mime_type
        except ValueError as error:  # as of one that is closed
            raise OutputFailed(f"the output file {name} cannot be read: {error}") from error
        except OSError as error:
            raise OutputFailed(f"the output file {name} cannot be read: {error.strerror}") from error

    def write(self, name: str, content: bytes) -> str:
        """Writes a file and returns the name that it got. Raises OutputFailed."""
        try:
            with self._create(name) as target:
                target.write(content)
                return os.path.basename(target.name)
        except OSError as error:
            raise OutputFailed(f"an output cannot be written: {error.strerror}") from error

    def _create(self, name: str) -> BinaryIO:
        make_private(self._directory)
        stem, ending = os.path.splitext(name)
        number = self._index
        while True:
            try:
                return open(os.path.join(self._directory, name), "xb")
            except FileExistsError:
                name = f"{stem}-{number}{ending}"
                number += 1


def _name_of(file: Any) -> str:
    name = os.fspath(file) if isinstance(file, os.PathLike) else getattr(file, "name", None)
    return file_name(os.fsdecode(name).rpartition("/")[2]) if isinstance(name, str | bytes) else "output"


def _pieces(file: Any) -> Iterator[bytes]:
    """Yields the whole content, also of a file that was read or written to before."""
    if isinstance(file, os.PathLike):
        with _regular(file) as opened:
            yield from iter(partial(opened.read, _PIECE), b"")
        return
    if callable(is_seekable := getattr(file, "seekable", None)) and is_seekable():
        file.seek(0)
    source = getattr(file, "buffer", file)  # the bytes below a text
    while piece := source.read(_PIECE):
        yield piece.encode() if isinstance(piece, str) else piece


def _regular(path: os.PathLike[str]) -> BinaryIO:
    """Opens a plain file, without waiting for the other end of what turns out to be none."""
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return opened


_SMALL = MAX_VALUE // 6  # characters: as JSON, a character takes six bytes at most


class Draft:
    """The chunk of this index, converted to JSON but before its files are copied.

    Once the message is made, the author's objects and files are not needed any more: copies lie in
    `directory`/outputs.
    """

    def __init__(self, value: Any, index: int, directory: str) -> None:
        """Converts the value. Raises OutputFailed if it has no JSON form."""
        self._index = index
        self._directory = directory
        self._files: list[tuple[Place, Any]] = []
        self._file = value if is_file(value) else None
        self._output = (
            None if is_file(value) else jsonable(value, lambda place, file: self._files.append((place, file)))
        )
        self._encoded = _measured(self._output)

    @property
    def waits(self) -> bool:
        """True if `message` waits for the disk."""
        return bool(self._files) or self._file is not None or self._encoded is not None

    def message(self) -> OutputChunk | FileOutput:
        """Makes the message and writes files; call it once, in any thread. Raises OutputFailed for unreadable files."""
        files = OutputFiles(os.path.join(self._directory, "outputs"), self._index)
        if self._file is not None:
            name, mime_type = files.keep(self._file)
            return FileOutput(name, "file_type", mime_type, self._index)
        refs = [FileRef(place, *files.keep(file)) for place, file in self._files]
        if self._encoded is None:
            return OutputChunk(self._output, self._index, refs)
        name = files.write("output.json", self._encoded)
        return FileOutput(name, "oversized", "application/json", self._index, refs, n_bytes=len(self._encoded))


def is_many(value: Any) -> bool:
    """Returns whether a predictor's result can be iterated for chunks: iterators, lists and other containers."""
    if (
        isinstance(value, str | bytes | bytearray | memoryview | Mapping)
        or is_file(value)
        or dump_of(value) is not None
    ):
        return False
    return hasattr(value, "__iter__") or hasattr(value, "__aiter__") or hasattr(value, "__anext__")


def encode(value: Any, index: int, directory: str) -> OutputChunk | FileOutput:
    """Drafts a value and makes its message. Waits for the disk if there are files. Raises OutputFailed."""
    return Draft(value, index, directory).message()


def _measured(output: Any) -> bytes | None:
    """Returns the JSON text if it is too large for a message, else None."""
    if output is None or isinstance(output, int | float) or (isinstance(output, str) and len(output) < _SMALL):
        return None
    encoded = msgspec.json.encode(output)
    return encoded if len(encoded) > MAX_VALUE else None
