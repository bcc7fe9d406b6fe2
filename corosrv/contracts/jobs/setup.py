"""A worker process as others see it: its states, its set-up, and the messages of one prediction.

`Setup` says when the set-up began and ended, how, and what it printed. The messages of a prediction (logs, outputs,
metrics, and last how it ended) cross from the worker's process as they are, told apart by their `type`.
"""

from __future__ import annotations

import io
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import msgspec

from corosrv.base.errors import IllegalTransition


class _AnswerBase(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class LogLine(_AnswerBase, frozen=True, tag="log_line"):
    source: str
    data: str


class FileRef(msgspec.Struct, frozen=True):
    """A file within an output: its place there, which holds null until the file is put in."""

    path: list[str | int]
    filename: str
    mime_type: str


class OutputChunk(_AnswerBase, frozen=True, tag="output_chunk"):
    """A chunk of the output. `index` counts them from 0. `is_stream`: as in Done, where it is known before the end."""

    output: Any
    index: int
    files: list[FileRef] = []
    is_stream: bool = False


class FileOutput(_AnswerBase, frozen=True, tag="file_output"):
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


class Metric(_AnswerBase, frozen=True, tag="metric"):
    """`mode`: replace, increment or append. A value of None deletes."""

    name: str
    value: Any
    mode: str = "replace"


class Done(_AnswerBase, frozen=True, tag="done"):
    """`is_stream`: the chunks are members of a list, also if there is one or none."""

    id: str
    predict_time: float  # seconds
    is_stream: bool = False


class Failed(_AnswerBase, frozen=True, tag="failed"):
    """`error`: type and message."""

    id: str
    predict_time: float
    error: str
    is_stream: bool = False


class Cancelled(_AnswerBase, frozen=True, tag="cancelled"):
    id: str
    predict_time: float
    is_stream: bool = False


Terminal = Done | Failed | Cancelled
Output = OutputChunk | FileOutput
Answer = LogLine | OutputChunk | FileOutput | Metric | Done | Failed | Cancelled

TERMINAL = (Done, Failed, Cancelled)  # for isinstance


MAX_LOGS = 4 << 20  # characters

_CUT = "\n[TRUNCATED: the set-up printed more than is kept]\n"


class Setup:
    """`status`: starting, succeeded or failed. Once it has ended, nothing changes any more."""

    def __init__(self) -> None:
        self.status = "starting"
        self.started_at: datetime | None = None
        self.completed_at: datetime | None = None
        self._logs = io.StringIO()
        self._is_cut = False

    @property
    def logs(self) -> str:
        return self._logs.getvalue()

    def start(self) -> None:
        self.started_at = datetime.now(timezone.utc)

    def add_logs(self, text: str) -> None:
        """Keeps what there is room for, and says where it was cut."""
        if self._is_cut:
            return
        room = MAX_LOGS - self._logs.tell()
        self._logs.write(text[:room])
        if len(text) > room:
            self._logs.write(_CUT)
            self._is_cut = True

    def succeed(self) -> None:
        self._end("succeeded")

    def fail(self, error: str) -> None:
        """Ends the logs with the error, unless the worker has printed it by itself."""
        logs = self.logs
        if error not in logs:
            line_end = "" if logs.endswith("\n") or not logs else "\n"
            self._logs.write(f"{line_end}{error}\n")
        self._end("failed")

    def _end(self, status: str) -> None:
        self.status = status
        self.completed_at = datetime.now(timezone.utc)


class WorkerState(str, Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # it takes nothing new, and ends when nothing runs
    SETUP_FAILED = "setup_failed"
    DEFUNCT = "defunct"  # it died, or none of its slots can be used
    STOPPED = "stopped"  # as somebody wanted


NEXT: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.STARTING: frozenset({WorkerState.READY, WorkerState.SETUP_FAILED, WorkerState.STOPPED}),
    WorkerState.READY: frozenset({WorkerState.DRAINING, WorkerState.DEFUNCT, WorkerState.STOPPED}),
    WorkerState.DRAINING: frozenset({WorkerState.DEFUNCT, WorkerState.STOPPED}),
    WorkerState.SETUP_FAILED: frozenset(),
    WorkerState.DEFUNCT: frozenset(),
    WorkerState.STOPPED: frozenset(),
}


def check_move(state: WorkerState, next_state: WorkerState) -> None:
    """Raises IllegalTransition unless the table has it."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a worker", state, next_state)
