"""The course of one prediction: from its permit, through the worker, to its end."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from gevent.hub import get_hub

from corosrv.dispatch.permits import Permit
from corosrv.jobs import PredictJob
from corosrv.predictions.chunks import Chunks, Output
from corosrv.predictions.files import weight
from corosrv.predictions.folder import ServerFolder
from corosrv.predictions.prediction import Prediction, Status
from corosrv.predictions.times import now
from corosrv.wire.messages import Cancelled, Done, Failed, LogLine, Metric, SlotToServer
from corosrv.worker.parent.predict_reader import PredictReader

log = logging.getLogger("corosrv.predictions")

CANCEL_GRACE = 1.0  # seconds that outputs of a canceled prediction have to be uploaded or encoded

Terminal = Done | Failed | Cancelled


class Submits(Protocol):
    """What a run needs of a worker."""

    def submit(self, job: PredictJob, permit: Permit) -> PredictReader: ...


class Resolves(Protocol):
    """What it needs to make values of outputs that are files."""

    def resolve(self, message: Output, directory: str) -> Any: ...


class Run:
    """Drives one prediction, in a greenlet of its own. Owns its permit until the worker has it, and its directory.

    `on_end` is called with the prediction's terminal state once the permit is back; it must not wait.
    """

    def __init__(
        self,
        prediction: Prediction,
        permit: Permit,
        context: Mapping[str, str],
        worker: Submits,
        files: Resolves,
        folder: ServerFolder,
        on_end: Callable[[Run, Status, str | None, Terminal | None], None],
    ) -> None:
        self.prediction = prediction
        self._permit: Permit | None = permit
        self._context = context
        self._worker = worker
        self._files = files
        self._folder = folder
        self._on_end = on_end
        self._reader: PredictReader | None = None
        self._chunks: Chunks | None = None  # while the worker's messages are read
        self._is_cut = False  # canceled while outputs were uploaded or encoded
        self._doom: str | None = None
        self._fault: str | None = None  # of an output

    def cancel(self) -> None:
        """Ends the prediction, also one whose outputs are still being uploaded. Never waits; twice is harmless."""
        self.prediction.is_cancel_requested = True
        if self._reader is not None:
            self._reader.cancel()
        if self._chunks is not None:
            self._is_cut = self._is_cut or not self._chunks.is_finished
            self._chunks.give_up_after(CANCEL_GRACE)

    def doom(self, error: str) -> None:
        """Whatever its worker says of it from now on, unless that is its result: it failed of this."""
        self._doom = error

    def run(self) -> None:
        """To the prediction's end, whatever happens. Waits."""
        terminal: Terminal | None = None
        error: str | None = "RuntimeError: the prediction was given up"
        try:
            with _directory(self._folder) as directory:
                terminal, error = self._work(directory), None
        except Exception as raised:
            log.exception("prediction %s could not be run", self.prediction.id)
            error = f"{type(raised).__name__}: {raised}"
        finally:
            if self._permit is not None:
                self._permit.release()
            self._on_end(self, *self._verdict(terminal, error), terminal)

    def _work(self, directory: str) -> Terminal | None:
        """The worker's last word; None where the prediction was canceled before the worker heard of it."""
        prediction = self.prediction
        if prediction.is_cancel_requested:
            return None
        permit, self._permit = self._permit, None
        assert permit is not None
        job = PredictJob(prediction.id, prediction.input, directory, self._context)
        with self._worker.submit(job, permit) as reader:
            self._reader = reader
            prediction.begin(now())
            if prediction.is_cancel_requested:
                reader.cancel()
            return self._read(reader, directory)

    def _read(self, reader: PredictReader, directory: str) -> Terminal | None:
        chunks = Chunks(functools.partial(self._resolve, directory), self.prediction.add_output, self._on_fault)
        self._chunks = chunks
        n_counted = 0
        terminal: Terminal | None = None
        try:
            while messages := reader.take():
                self.prediction.n_bytes += reader.n_received - n_counted
                n_counted = reader.n_received
                for message in messages:
                    terminal = self._take(message, chunks)
            chunks.finish()
        finally:
            self._chunks = None
            chunks.close()
        return terminal

    def _resolve(self, directory: str, message: Output) -> Any:
        value = self._files.resolve(message, directory)
        self.prediction.n_bytes += weight(message, value)
        return value

    def _take(self, message: SlotToServer, chunks: Chunks) -> Terminal | None:
        if isinstance(message, LogLine):
            self.prediction.add_log(message.source, message.data)
        elif isinstance(message, Metric):
            self.prediction.add_metric(message.name, message.value, message.mode)
        elif isinstance(message, (Done, Failed, Cancelled)):
            return message
        else:
            if message.is_stream:
                self.prediction.become_list()
            chunks.put(message)
        return None

    def _on_fault(self, error: Exception) -> None:
        """An output could not be had: that is the end of it, whatever else it may bring forth."""
        self._fault = f"{type(error).__name__}: {error}"
        if self._reader is not None:
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
def _directory(folder: ServerFolder) -> Iterator[str]:
    """A place that nobody can guess, for files; whatever is there in the end is removed.

    Most predictions have none. So whoever has the first one makes it: to make and remove a directory may take a disk
    milliseconds, in which nothing else would be served.
    """
    path = folder.new_path()
    try:
        yield path
    finally:
        if os.path.lexists(path):
            get_hub().threadpool.apply(shutil.rmtree, (path, True))
