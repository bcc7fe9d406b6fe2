"""Follows a prediction on a slot of the worker: feeds its reader, and ends it once.

Receives what one prediction sends: buffers its messages, and makes the worker wait while nobody takes them.

Makes messages of predictions: the input is inside, or in a file if it is large.

Runs the predictor's own health check, one at a time for all who ask.
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
from gevent.event import AsyncResult, Event
from gevent.hub import get_hub

from corosrv.base.errors import ProtocolError, ReadTimeout
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.reader import Reader, Sink
from corosrv.contracts.jobs.setup import TERMINAL, Answer, Failed
from corosrv.workers.dispatch.host import Permit
from corosrv.workers.wire.messages import MAX_VALUE, Predict
from corosrv.workers.worker.values.addresses import make_private

MAX_UNREAD = 1 << 20  # bytes; a message that goes beyond is kept, and no more are read


class PredictReader(Reader[Answer]):
    """Yields a prediction's messages; the terminal one comes once and is the last, whatever happens to the worker.

    The permit has ended when the terminal message can be taken. Leaving the `with` block cancels what is unfinished.
    Belongs to the hub's thread; one greenlet takes.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._unread: list[Answer] = []
        self._n_bytes = 0  # of those
        self.n_received = 0  # bytes of all messages so far
        self._has_ended = False  # the terminal message is there
        self._is_closed = False
        self._is_cancelled = False
        self._has_news = Event()
        self._has_room = Event()
        self._has_room.set()

    @property
    def is_finished(self) -> bool:
        """True once the terminal message was taken or dropped."""
        return self._has_ended and not self._unread

    def take(self, timeout: float | None = None) -> list[Answer]:
        """Returns all unread messages, at least one; an empty list after the terminal one and after close(). Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """
        if not self._unread and not self._has_ended and not self._is_closed:
            self._has_news.clear()
            if not self._has_news.wait(timeout):
                raise ReadTimeout(f"nothing to read for {timeout:g} s")
        return self._empty()

    def _empty(self) -> list[Answer]:
        messages, self._unread = self._unread, []
        self._n_bytes = 0
        self._has_room.set()
        return messages

    def cancel(self) -> None:
        """Asks the prediction to end, with its terminal message. Never waits. Later calls do nothing."""
        if not self._has_ended and not self._is_cancelled:
            self._is_cancelled = True
            self._cancel()

    def close(self) -> None:
        """Cancels, and drops unread and later messages. Later calls do nothing."""
        self.cancel()
        self._is_closed = True
        self._empty()
        self._has_news.set()

    def pump(self, sink: Sink[Answer], timeout: float | None = None) -> None:
        """Hands all unread messages to `sink` until it returns False or the terminal one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without messages.
        """
        while (answers := self.take(timeout)) and sink(answers):
            pass

    # What follows is for whoever feeds the reader.

    def add(self, message: Answer, n_bytes: int) -> None:
        """Adds a message; none may follow a terminal one. Never waits."""
        assert not self._has_ended, f"{message} comes behind the terminal message"
        self._has_ended = isinstance(message, TERMINAL)
        if self._is_closed:
            return
        self._unread.append(message)
        self._n_bytes += n_bytes
        self.n_received += n_bytes
        if self._n_bytes > MAX_UNREAD:
            self._has_room.clear()
        self._has_news.set()

    def wait_for_room(self) -> None:
        """Waits while more than MAX_UNREAD bytes are unread."""
        self._has_room.wait()


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
