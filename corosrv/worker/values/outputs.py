"""What a predictor returned or yielded, as messages: files are copied, and so is what is too large for a message."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from corosrv.wire.messages import MAX_VALUE, FileOutput, FileRef, OutputChunk
from corosrv.worker.values.jsonable import is_file, jsonable
from corosrv.worker.values.output_files import OutputFiles

_SMALL = MAX_VALUE // 6  # characters: as JSON, a character takes six bytes at most


def encode(value: Any, index: int, directory: str) -> OutputChunk | FileOutput:
    """The chunk of this index. Its files lie in `directory`/outputs from now on, whatever becomes of the author's.

    Waits for the disk, where there are files. Raises OutputFailed for a value that JSON does not have, and for a file
    that is not there.
    """
    files = OutputFiles(os.path.join(directory, "outputs"), index)
    if is_file(value):
        name, mime_type = files.keep(value)
        return FileOutput(name, "file_type", mime_type, index)
    refs: list[FileRef] = []

    def put(path: list[str | int], file: Any) -> None:
        name, mime_type = files.keep(file)
        refs.append(FileRef(path, name, mime_type))

    output = jsonable(value, put)
    encoded = _measured(output)
    if encoded is None:
        return OutputChunk(output, index, refs)
    return FileOutput(files.write("output.json", encoded), "oversized", "application/json", index, refs)


def _measured(output: Any) -> bytes | None:
    """The JSON text, if it is too large for a message."""
    if output is None or isinstance(output, int | float) or (isinstance(output, str) and len(output) < _SMALL):
        return None
    encoded = msgspec.json.encode(output)
    return encoded if len(encoded) > MAX_VALUE else None
