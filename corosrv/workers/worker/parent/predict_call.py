"""Follows a prediction on a slot of the worker: writes its message, feeds its reader, and ends it once.

A large input goes in a file. The reader buffers messages, and makes the worker wait while nobody takes them.
`HealthChecks` runs the predictor's own check, one at a time for all who ask.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, cast

import gevent
import msgspec
from gevent.event import AsyncResult
from gevent.hub import get_hub

from corosrv.base.errors import ProtocolError
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.buffered import BufferedReader
from corosrv.contracts.jobs.setup import TERMINAL, Answer, Failed
from corosrv.workers.dispatch.host import Permit
from corosrv.workers.wire.messages import MAX_VALUE, Predict
from corosrv.workers.worker.values.addresses import make_private


class PredictReader(BufferedReader[Answer]):
    """Yields a prediction's messages; the terminal one comes once and is the last, whatever happens to the worker.

    The permit has ended when the terminal message can be taken. Leaving the `with` block cancels what is unfinished.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__(cancel)
        self.n_received = 0  # bytes of all messages so far

    def cancel(self) -> None:
        """Asks the prediction to end, with its terminal message. Never waits. Later calls do nothing."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def add(self, message: Answer, n_bytes: int) -> None:
        """Adds a message; none may follow a terminal one. Never waits."""
        if not self._is_closed:
            self.n_received += n_bytes
        if isinstance(message, TERMINAL):
            self.add_last(message, n_bytes)
        else:
            self.add_item(message, n_bytes)


class PredictCall:
    """Fulfils SlotCall for a prediction. Its terminal message is its last."""

    def __init__(self, id: str, permit: Permit, reader: PredictReader) -> None:
        self.id = id
        self.permit = permit
        self.reader = reader
        self.sending: gevent.Greenlet | None = None  # while its large input is written to a file
        self._began = time.monotonic()

    def is_last(self, message: Answer) -> bool:
        if not isinstance(message, TERMINAL):
            return False
        if message.id != self.id:
            raise ProtocolError(f"{type(message).__name__} came for another prediction than the one that runs")
        return True

    def add(self, message: Answer, n_bytes: int) -> None:
        self.reader.add(message, n_bytes)

    def wait_for_room(self) -> None:
        self.reader.wait_for_room()

    def fail(self, reason: str) -> None:
        failed = Failed(self.id, time.monotonic() - self._began, reason)
        if self.sending is None or self.sending.ready():
            self.reader.add(failed, 0)
        else:  # whoever reads it removes the directory, where a file is still written
            self.sending.rawlink(lambda _: self.reader.add(failed, 0))


def small_message(job: PredictJob) -> Predict | None:
    """Returns the message with the input inside; None if it is too large. Never waits. Raises what msgspec raises."""
    value = msgspec.json.encode(job.input)
    if len(value) > MAX_VALUE:
        return None
    return Predict(job.id, job.output_dir, input=_as_encoded(value), context=dict(job.context))


def large_message(job: PredictJob) -> Predict:
    """Returns the message with the input in a file of the job's directory. Waits for the disk. Raises OSError."""
    path = _spilled(msgspec.json.encode(job.input), job.output_dir)
    return Predict(job.id, job.output_dir, input_file=path, context=dict(job.context))


def _as_encoded(value: bytes) -> dict[str, Any]:
    """Wraps encoded JSON so that a message takes it for the value itself, and it is not encoded twice."""
    return cast("dict[str, Any]", msgspec.Raw(value))


def _spilled(value: bytes, directory: str) -> str:
    writing = get_hub().threadpool.spawn(_write, value, directory)
    try:
        path, error = writing.get()
    except BaseException:  # this greenlet is killed; whoever removes the directory then comes after its last file
        writing.wait()
        raise
    if error is not None:
        raise error
    return str(path)


def _write(value: bytes, directory: str) -> tuple[str, OSError | None]:
    """Writes a file; returns its path, or the error, since gevent prints whatever a thread of its pool raises."""
    try:
        make_private(directory)
        fd, path = tempfile.mkstemp(".json", "input-", directory)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
    except OSError as error:
        return "", error
    return path, None


LIMIT = 5.0  # seconds


class HealthChecks:
    """Runs one check at a time; callers that ask meanwhile share it, and none begins while one hangs."""

    def __init__(self, send: Callable[[str], None], limit: float = LIMIT) -> None:
        """`send` asks the worker to run the check of this id; it must not wait."""
        self._send = send
        self._limit = limit
        self._ids = map(str, itertools.count())
        self._running: tuple[str, float, AsyncResult] | None = None  # id, deadline, its outcome

    def ask(self) -> str | None:
        """Returns None if the predictor is healthy, otherwise the reason. Waits until the limit at most."""
        if self._running is None:
            check_id = next(self._ids)
            self._running = check_id, time.monotonic() + self._limit, AsyncResult()
            self._send(check_id)
        _, deadline, outcome = self._running
        reason: str | None = None
        if outcome.wait(max(0.0, deadline - time.monotonic())) is None and not outcome.ready():
            return f"Healthcheck failed: user-defined healthcheck timed out after {self._limit:.1f} seconds"
        reason = outcome.get_nowait()
        return reason

    def answer(self, check_id: str, reason: str | None) -> None:
        """Ends the check with this outcome, unless it was given up or answered before."""
        if self._running is not None and self._running[0] == check_id:
            self.give_up(reason)

    def give_up(self, reason: str | None) -> None:
        """Ends the running check with this outcome and wakes everyone waiting for it."""
        running, self._running = self._running, None
        if running is not None:
            running[2].set(reason)
