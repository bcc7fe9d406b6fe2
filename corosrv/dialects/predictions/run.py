"""The course of one prediction: from its permit, through the worker, to its end and its line of log.

Several files of outputs are resolved at once; values are emitted in the order in which they came.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub
from gevent.pool import Pool

from corosrv.contracts.jobs import Reader
from corosrv.contracts.jobs.setup import Answer, Cancelled, Done, Failed, LogLine, Metric, Output, OutputChunk, Terminal
from corosrv.contracts.jobs.terms import TracePart
from corosrv.dialects.predictions.files import Files, weight
from corosrv.dialects.predictions.prediction import Prediction, Status, utc_now
from corosrv.web.http.reply import line

log = logging.getLogger("corosrv.predictions")

AT_ONCE = 8


class Chunks:
    """Resolves the outputs of one prediction and emits their values. Used by one greenlet.

    At the first output that cannot be resolved it calls `on_error`, and emits nothing after it.
    """

    def __init__(
        self, resolve: Callable[[Output], Any], emit: Callable[[Any], None], on_error: Callable[[Exception], None]
    ) -> None:
        self._resolve = resolve
        self._emit = emit
        self._on_error = on_error
        self._is_broken = False
        self._pool = Pool(AT_ONCE)
        self._last: gevent.Greenlet | None = None
        self._giving_up: gevent.Greenlet | None = None

    def add(self, message: Output) -> None:
        """Adds an output. Waits while AT_ONCE outputs are being resolved, which makes the predictor wait, too."""
        is_first = self._last is None or self._last.ready()
        if is_first and isinstance(message, OutputChunk) and not message.files:
            if not self._is_broken:
                self._emit(message.output)
        else:
            self._last = self._pool.spawn(self._emit_after, self._last, message)

    def _emit_after(self, previous: gevent.Greenlet | None, message: Output) -> None:
        try:
            value, error = self._resolve(message), None
        except Exception as raised:  # a greenlet that raises would only print it
            value, error = None, raised
        if previous is not None:
            previous.join()
        if self._is_broken:
            return
        if error is None:
            self._emit(value)
        else:
            self._is_broken = True
            self._on_error(error)

    @property
    def is_finished(self) -> bool:
        """True if every output so far was emitted or has failed."""
        return not len(self._pool)

    def finish(self) -> None:
        """Waits until every output was emitted, has failed, or was given up."""
        self._pool.join()

    def give_up_after(self, seconds: float) -> None:
        """Gives up outputs that are unfinished after this time. Never waits; only the first call counts."""
        if self._giving_up is None:
            self._giving_up = gevent.spawn_later(seconds, self._pool.kill)

    def close(self) -> None:
        """Gives up unfinished outputs now. Later calls do nothing."""
        if self._giving_up is not None:
            self._giving_up.kill(block=False)
        self._pool.kill()


_finished_log = logging.getLogger("corosrv.jobs")

_TEXT = (
    "prediction %(id)s of %(predictor)s ended: %(outcome)s, %(n_outputs)d outputs, %(predict_ms)d ms of predicting, "
    "%(seconds).2f s in all"
)


def log_prediction(prediction: Prediction, predictor: str, as_json: bool) -> None:
    """Writes the line of a prediction that has ended. Those that succeeded are for the debug level.

    Tells of an error its type alone: its message may hold what a client sent.
    """
    level = logging.DEBUG if prediction.status is Status.SUCCEEDED else logging.INFO
    if not _finished_log.isEnabledFor(level):
        return
    members = {
        "id": line(prediction.id),
        "predictor": predictor,
        "outcome": prediction.error_type or prediction.status.value,
        "n_outputs": prediction.n_outputs,
        "predict_ms": round(1000 * (prediction.predict_time or 0.0), 1),
        "seconds": round(prediction.seconds, 3),
    }
    _finished_log.log(level, "%s", json.dumps({"event": "prediction_ended", **members}) if as_json else _TEXT % members)


CANCEL_GRACE = 1.0  # seconds that outputs of a canceled prediction have to be uploaded or encoded


class AnswerReader(Reader[Answer], Protocol):
    """The reader that a run takes answers from."""

    @property
    def n_received(self) -> int:
        """Bytes of all answers so far."""


class Run:
    """Drives one prediction, from the worker's first answer to its end, in a greenlet of its own.

    Owns its reader and its directory. `on_end` is called with the prediction's terminal state once its slot is free
    again; it must not wait.
    """

    def __init__(
        self,
        prediction: Prediction,
        reader: AnswerReader,
        files: Files,
        directory: str,
        on_end: Callable[[Run, Status, str | None, Terminal | None], None],
        trace: TracePart | None = None,
    ) -> None:
        """`trace`: its own part of its request's, which `on_end` ends."""
        self.prediction = prediction
        self.trace = trace
        self._reader = reader
        self._files = files
        self._directory = directory
        self._on_end = on_end
        self._chunks: Chunks | None = None  # while the worker's answers are read
        self._is_cut = False  # canceled while outputs were uploaded or encoded
        self._doom: str | None = None
        self._fault: str | None = None  # of an output

    def cancel(self) -> None:
        """Cancels the prediction, also while its outputs are uploaded. Never waits. Later calls do nothing."""
        self.prediction.is_cancel_requested = True
        self._reader.cancel()
        if self._chunks is not None:
            self._is_cut = self._is_cut or not self._chunks.is_finished
            self._chunks.give_up_after(CANCEL_GRACE)

    def doom(self, error: str) -> None:
        """Fails the prediction with this error, unless the worker still sends its result."""
        self._doom = error

    def run(self) -> None:
        """Runs to the prediction's end, whatever happens. Waits."""
        terminal: Terminal | None = None
        error: str | None = "RuntimeError: the prediction was given up"
        try:
            with _removed(self._directory), self._reader:
                if not self.prediction.is_cancel_requested:
                    self.prediction.begin(utc_now())
                terminal, error = self._read(), None
                self.prediction.encode_outputs()
        except Exception as raised:  # whatever it is, the prediction has to end
            log.exception("prediction %s could not be run", self.prediction.id)
            error = f"{type(raised).__name__}: {raised}"
        finally:
            self._on_end(self, *self._verdict(terminal, error), terminal)

    def _read(self) -> Terminal | None:
        """Reads until the worker's last answer and returns it; None if none came. Waits."""
        reader = self._reader
        self._chunks = chunks = Chunks(self._resolve, self.prediction.add_output, self._on_fault)
        n_counted = 0
        terminal: Terminal | None = None
        try:
            while answers := reader.take():
                self.prediction.n_bytes += reader.n_received - n_counted
                n_counted = reader.n_received
                for answer in answers:
                    terminal = self._take(answer, chunks)
            chunks.finish()
        finally:
            self._chunks = None
            chunks.close()
        return terminal

    def _resolve(self, message: Output) -> Any:
        value = self._files.resolve(message, self._directory)
        self.prediction.n_bytes += weight(message, value)
        return value

    def _take(self, message: Answer, chunks: Chunks) -> Terminal | None:
        if isinstance(message, LogLine):
            self.prediction.add_log(message.source, message.data)
        elif isinstance(message, Metric):
            self.prediction.add_metric(message.name, message.value, message.mode)
        elif isinstance(message, (Done, Failed, Cancelled)):
            return message
        else:
            if message.is_stream:
                self.prediction.become_list()
            chunks.add(message)
        return None

    def _on_fault(self, error: Exception) -> None:
        """Records that an output could not be resolved, and ends the prediction."""
        self._fault = f"{type(error).__name__}: {error}"
        self._reader.cancel()

    def _verdict(self, terminal: Terminal | None, error: str | None) -> tuple[Status, str | None]:
        if self._doom is not None and not isinstance(terminal, Done):
            return Status.FAILED, self._doom
        if error is not None:
            return Status.FAILED, error
        if self._fault is not None and not self.prediction.is_cancel_requested:
            return Status.FAILED, self._fault
        if isinstance(terminal, Failed):
            return Status.FAILED, terminal.error
        if self._is_cut:
            return Status.CANCELED, None
        return (Status.SUCCEEDED, None) if isinstance(terminal, Done) else (Status.CANCELED, None)


@contextmanager
def _removed(directory: str) -> Iterator[None]:
    """Removes a prediction's directory in the end.

    Most predictions have none: whoever has the first file makes it. To make and remove a directory may take a disk
    milliseconds, in which nothing else would be served.
    """
    try:
        yield
    finally:
        if os.path.lexists(directory):
            get_hub().threadpool.apply(shutil.rmtree, (directory, True))
