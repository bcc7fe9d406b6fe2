"""The messages that the reader of a prediction yields: its logs, outputs and metrics, and last how it ended.

They cross from the worker's process as they are, told apart by their `type`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Answer(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class LogLine(_Answer, frozen=True, tag="log_line"):
    source: str
    data: str


class FileRef(msgspec.Struct, frozen=True):
    """A file within an output: its place there, which holds null until the file is put in."""

    path: list[str | int]
    filename: str
    mime_type: str


class OutputChunk(_Answer, frozen=True, tag="output_chunk"):
    """`index` counts a prediction's chunks from 0. `is_stream`: as at the end, where nobody could know it before."""

    output: Any
    index: int
    files: list[FileRef] = []
    is_stream: bool = False


class FileOutput(_Answer, frozen=True, tag="file_output"):
    """A chunk in a file. `kind`: file_type, the file is the chunk; oversized, it holds the chunk as JSON.

    `n_bytes`: the size of an oversized chunk's file.
    """

    filename: str
    kind: str
    mime_type: str
    index: int
    files: list[FileRef] = []
    is_stream: bool = False
    n_bytes: int = 0


class Metric(_Answer, frozen=True, tag="metric"):
    """`mode`: replace, increment or append. A value of None deletes."""

    name: str
    value: Any
    mode: str = "replace"


class Done(_Answer, frozen=True, tag="done"):
    """`is_stream`: the chunks are members of a list, also if there is one or none."""

    id: str
    predict_time: float  # seconds
    is_stream: bool = False


class Failed(_Answer, frozen=True, tag="failed"):
    """`error`: type and message."""

    id: str
    predict_time: float
    error: str
    is_stream: bool = False


class Cancelled(_Answer, frozen=True, tag="cancelled"):
    id: str
    predict_time: float
    is_stream: bool = False


Terminal = Done | Failed | Cancelled
Output = OutputChunk | FileOutput
Answer = LogLine | OutputChunk | FileOutput | Metric | Done | Failed | Cancelled

TERMINAL = (Done, Failed, Cancelled)  # for isinstance
