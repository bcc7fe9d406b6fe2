"""Makes messages of what a predictor returned or yielded; writes files, and values too large for a message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from corosrv.contracts.jobs.answers import FileOutput, FileRef, OutputChunk
from corosrv.workers.wire.messages import MAX_VALUE
from corosrv.workers.worker.values.jsonable import Place, is_file, jsonable
from corosrv.workers.worker.values.models import dump_of
from corosrv.workers.worker.values.output_files import OutputFiles

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
