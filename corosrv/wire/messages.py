"""What server and worker say to each other about predictions: JSON objects, told apart by their `type`.

A worker has one control channel, and one channel for each slot, so that bulk data in one slot delays neither another
slot nor a cancel. The terminal message (Done, Failed or Cancelled) is a prediction's last: behind its logs and outputs,
and sent when the slot is idle again.
"""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL = 1  # of these messages; a worker that speaks another one is refused
MAX_FRAME = 8 << 20  # bytes of one message
MAX_VALUE = 6 << 20  # bytes of an input or output as JSON; a larger one is written to a file and named


class _Message(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


# Control channel, to the worker.


class Init(_Message, frozen=True, tag="init"):
    """First of all. `num_slots`: None where the predictor's own word counts."""

    predictor_ref: str
    num_slots: int | None = None
    protocol: int = PROTOCOL


class Cancel(_Message, frozen=True, tag="cancel"):
    """Of this prediction; nothing, once the slot runs another."""

    slot: int
    id: str


class HealthCheck(_Message, frozen=True, tag="healthcheck"):
    id: str


class Shutdown(_Message, frozen=True, tag="shutdown"):
    """Ends the worker once nothing runs."""


# Control channel, to the server.


class Ready(_Message, frozen=True, tag="ready"):
    """Set up. `slots`: their ids, in the order of their channels; `schema`: the OpenAPI document's components and what
    the predictor declared, as corosrv.worker.signatures.schema makes it. `has_healthcheck`: HealthCheck is of use."""

    slots: list[int]
    schema: dict[str, Any]
    protocol: int = PROTOCOL
    has_healthcheck: bool = True


class Log(_Message, frozen=True, tag="log"):
    """Printed outside predictions. `source`: stdout or stderr."""

    source: str
    data: str


class HealthCheckResult(_Message, frozen=True, tag="healthcheck_result"):
    """`status`: healthy or unhealthy."""

    id: str
    status: str
    error: str = ""


class SlotFailed(_Message, frozen=True, tag="failed"):
    """The slot can run nothing any more; before Ready (slot -1): set-up failed."""

    slot: int
    error: str


class Fatal(_Message, frozen=True, tag="fatal"):
    """The worker is about to abort."""

    reason: str


class DroppedLogs(_Message, frozen=True, tag="dropped_logs"):
    count: int
    interval_millis: int


class ShuttingDown(_Message, frozen=True, tag="shutting_down"):
    pass


# Slot channel, to the worker.


class Predict(_Message, frozen=True, tag="predict"):
    """`input`: validated, with its defaults; in `input_file`, as JSON, where it is large. Files go to `output_dir`."""

    id: str
    output_dir: str
    input: dict[str, Any] | None = None
    input_file: str | None = None
    context: dict[str, str] = {}


# Slot channel, to the server.


class LogLine(_Message, frozen=True, tag="log_line"):
    source: str
    data: str


class FileRef(msgspec.Struct, frozen=True):
    """A file within an output: its place there, which holds null until the file is put in."""

    path: list[str | int]
    filename: str
    mime_type: str


class OutputChunk(_Message, frozen=True, tag="output_chunk"):
    """`index` counts a prediction's chunks from 0. `is_stream`: as at the end, where nobody could know it before."""

    output: Any
    index: int
    files: list[FileRef] = []
    is_stream: bool = False


class FileOutput(_Message, frozen=True, tag="file_output"):
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


class Metric(_Message, frozen=True, tag="metric"):
    """`mode`: replace, increment or append. A value of None deletes."""

    name: str
    value: Any
    mode: str = "replace"


class Done(_Message, frozen=True, tag="done"):
    """`is_stream`: the chunks are members of a list, also if there is one or none."""

    id: str
    predict_time: float  # seconds
    is_stream: bool = False


class Failed(_Message, frozen=True, tag="failed"):
    """`error`: type and message."""

    id: str
    predict_time: float
    error: str
    is_stream: bool = False


class Cancelled(_Message, frozen=True, tag="cancelled"):
    id: str
    predict_time: float
    is_stream: bool = False


ControlToWorker = Init | Cancel | HealthCheck | Shutdown
ControlToServer = Ready | Log | HealthCheckResult | SlotFailed | Fatal | DroppedLogs | ShuttingDown
SlotToWorker = Predict
SlotToServer = LogLine | OutputChunk | FileOutput | Metric | Done | Failed | Cancelled
