"""What a predictor returned or yielded, as messages: files are copied, and so is what is too large for a message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from corosrv.jobs.answers import FileOutput, FileRef, OutputChunk
from corosrv.wire.messages import MAX_VALUE
from corosrv.worker.values.jsonable import Place, is_file, jsonable
from corosrv.worker.values.models import dump_of
from corosrv.worker.values.output_files import OutputFiles

_SMALL = MAX_VALUE // 6  # characters: as JSON, a character takes six bytes at most


class Draft:
    """The chunk of this index, before its files are copied: what JSON has of it is made at once.

    The author's objects are read by the time that there is a message, and the files lie in `directory`/outputs,
    whatever becomes of the author's.
    """

    def __init__(self, value: Any, index: int, directory: str) -> None:
        """Raises OutputFailed for a value that JSON does not have."""
        self._index = index
        self._directory = directory
        self._files: list[tuple[Place, Any]] = []
        self._whole = value if is_file(value) else None
        self._output = (
            None if is_file(value) else jsonable(value, lambda place, file: self._files.append((place, file)))
        )
        self._encoded = _measured(self._output)

    @property
    def waits(self) -> bool:
        """Whether `message` waits for the disk."""
        return bool(self._files) or self._whole is not None or self._encoded is not None

    def message(self) -> OutputChunk | FileOutput:
        """To be called once, in any thread. Raises OutputFailed for a file that is not there."""
        files = OutputFiles(os.path.join(self._directory, "outputs"), self._index)
        if self._whole is not None:
            name, mime_type = files.keep(self._whole)
            return FileOutput(name, "file_type", mime_type, self._index)
        refs = [FileRef(place, *files.keep(file)) for place, file in self._files]
        if self._encoded is None:
            return OutputChunk(self._output, self._index, refs)
        name = files.write("output.json", self._encoded)
        return FileOutput(name, "oversized", "application/json", self._index, refs, n_bytes=len(self._encoded))


def is_many(value: Any) -> bool:
    """Whether what was to be an iterator is one, or something whose members can be handed out like one's."""
    if (
        isinstance(value, str | bytes | bytearray | memoryview | Mapping)
        or is_file(value)
        or dump_of(value) is not None
    ):
        return False
    return hasattr(value, "__iter__") or hasattr(value, "__aiter__") or hasattr(value, "__anext__")


def encode(value: Any, index: int, directory: str) -> OutputChunk | FileOutput:
    """Drafted and written at once. Waits for the disk, where there are files. Raises OutputFailed."""
    return Draft(value, index, directory).message()


def _measured(output: Any) -> bytes | None:
    """The JSON text, if it is too large for a message."""
    if output is None or isinstance(output, int | float) or (isinstance(output, str) and len(output) < _SMALL):
        return None
    encoded = msgspec.json.encode(output)
    return encoded if len(encoded) > MAX_VALUE else None
