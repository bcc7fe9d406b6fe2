"""Files of outputs: each becomes a data URL, or is uploaded below the operator's URL and becomes its address there."""

from __future__ import annotations

import base64
import functools
import operator
import os
from collections.abc import Iterator
from typing import Any

import msgspec
from gevent.pool import Pool

from corosrv.base.errors import OutputFailed
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs.answers import FileOutput, FileRef, OutputChunk
from corosrv.dialects.predictions.encoding import LargeJson
from corosrv.dialects.predictions.upload import Uploads

_LARGE = 1 << 20  # bytes; smaller files are read at once, larger ones in a thread
_PIECE = 3 << 18  # bytes; a multiple of three, so that the base64 of pieces is that of the whole
_AT_ONCE = 8  # files of one output


class Files:
    """Turns the messages of a worker into output values. Used by any number of greenlets at once."""

    def __init__(self, upload_url: str | None = None) -> None:
        """Uploads files below `upload_url`; without it they become data URLs."""
        self._uploads = Uploads(upload_url) if upload_url else None

    def resolve(self, message: OutputChunk | FileOutput, directory: str) -> Any:
        """Returns the value of a message, with addresses in place of its files; large ones are LargeJson.

        Waits for files. `directory`: the prediction's, whose `outputs` hold them. Calls may overlap; the caller keeps
        the values in order. Raises OutputFailed for a file that does not exist or cannot be uploaded.
        """
        if isinstance(message, OutputChunk):
            value = message.output
        elif message.kind == "oversized":
            value = _large_value(message, _path(directory, message.filename))
        else:
            return self._address(FileRef([], message.filename, message.mime_type), directory)
        if message.files:
            self._insert_all(value, message.files, directory)
        return value

    def _insert_all(self, value: Any, files: list[FileRef], directory: str) -> None:
        pool = Pool(_AT_ONCE)
        try:
            addresses = pool.imap(lambda file: self._attempt(file, directory), files)
            for file, address in zip(files, addresses, strict=True):
                if isinstance(address, OutputFailed):
                    raise address
                _insert(value, file.path, address)
        finally:
            pool.kill()

    def _attempt(self, file: FileRef, directory: str) -> str | LargeJson | OutputFailed:
        # Returned, since a greenlet that raises prints a traceback.
        try:
            return self._address(file, directory)
        except OutputFailed as error:
            return error

    def _address(self, file: FileRef, directory: str) -> str | LargeJson:
        path = _path(directory, file.filename)
        if self._uploads is not None:
            return self._uploads.upload(path, file.filename, file.mime_type)
        if _size(path) > _LARGE:
            address: LargeJson = call_in_thread(_large_data_url, path, file.mime_type)
            return address
        return _data_url(path, file.mime_type)


def weight(message: OutputChunk | FileOutput, value: Any) -> int:
    """Counts the bytes that stand for the message's files in `value`, which it was resolved to."""
    if isinstance(message, FileOutput) and message.kind != "oversized":
        return _length(value)
    n_oversized = message.n_bytes if isinstance(message, FileOutput) else 0
    return n_oversized + sum(_length(functools.reduce(operator.getitem, file.path, value)) for file in message.files)


def _length(address: str | LargeJson) -> int:
    return len(address) if isinstance(address, str) else address.n_bytes


def _large_value(message: FileOutput, path: str) -> Any:
    """The value of a file that holds JSON; as LargeJson, unless other files are to be put in. Waits."""
    if _size(path) != message.n_bytes:
        raise OutputFailed(f"the output in {message.filename} cannot be read: it is not as the worker wrote it")
    if not message.files:
        return call_in_thread(lambda: LargeJson(_pieces(path)))
    try:
        return call_in_thread(lambda: msgspec.json.decode(b"".join(_pieces(path))))
    except msgspec.DecodeError as error:
        raise OutputFailed(f"the output in {message.filename} cannot be read: {error}") from error


def _path(directory: str, name: str) -> str:
    """Raises OutputFailed for a name that leads out of the directory: the worker runs other people's code."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OutputFailed("the worker named an output file outside of its directory")
    return os.path.join(directory, "outputs", name)


def _insert(value: Any, path: list[str | int], address: str) -> None:
    try:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = address
    except (LookupError, TypeError) as error:
        raise OutputFailed("the worker put a file at a place that the output does not have") from error


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _pieces(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from iter(lambda: file.read(_PIECE), b"")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> OutputFailed:
    return OutputFailed(f"the output file {os.path.basename(path)} cannot be read: {error.strerror}")


def _data_url(path: str, mime_type: str) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(b''.join(_pieces(path))).decode()}"


def _large_data_url(path: str, mime_type: str) -> LargeJson:
    """Makes JSON text at once, piece by piece: one long step would stop the hub, in whatever thread it runs."""
    head = msgspec.json.encode(f"data:{mime_type};base64,")[:-1]
    return LargeJson([head, *map(base64.b64encode, _pieces(path)), b'"'])
