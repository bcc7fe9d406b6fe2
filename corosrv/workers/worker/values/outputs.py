"""Makes messages of what a predictor returned or yielded; writes files, and values too large for a message.

A file among the outputs is copied at once, since an author may write the next one over it.
"""

from __future__ import annotations

import errno
import mimetypes
import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import msgspec

from corosrv.base.errors import OutputFailed
from corosrv.contracts.jobs.setup import FileOutput, FileRef, OutputChunk
from corosrv.workers.wire.messages import MAX_VALUE
from corosrv.workers.worker.values.addresses import file_name, make_private
from corosrv.workers.worker.values.jsonable import Place, dump_of, is_file, jsonable

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
