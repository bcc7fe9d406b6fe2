"""A worker whose predictions a test runs by hand, and a service before it. Permits, readers and schema are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from corosrv.base.errors import NoCapacity
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, LogLine, OutputChunk, Setup, WorkerState
from corosrv.contracts.settings import PredictionSettings
from corosrv.dialects.predictions.parse import PredictionCall
from corosrv.dialects.predictions.prediction import Change, Prediction
from corosrv.dialects.predictions.service import CallOutcome, PredictionService
from corosrv.workers.dispatch.host import Permit, PermitPool
from corosrv.workers.wire.messages import SlotToServer
from corosrv.workers.worker.parent.predict_call import PredictReader
from corosrv.workers.worker.signatures import signature

TIMEOUT = 10.0


@dataclass
class Running:
    """One prediction in the worker; a test says what comes of it."""

    job: PredictJob
    permit: Permit
    reader: PredictReader
    is_cancelled: bool = False

    def give(self, *messages: SlotToServer) -> None:
        for message in messages:
            self.reader.add(message, 1)
        settle()

    def log(self, text: str) -> None:
        self.give(LogLine("stdout", text))

    def output(self, value: Any, index: int = 0) -> None:
        self.give(OutputChunk(value, index))

    def end(self, terminal: SlotToServer) -> None:
        """As the real one: the permit is back before anybody hears of the end."""
        self.permit.release()
        self.give(terminal)

    def done(self, is_stream: bool = False) -> None:
        self.end(Done(self.job.id, 0.25, is_stream))

    def failed(self, error: str = "ValueError: no") -> None:
        self.end(Failed(self.job.id, 0.25, error))

    def cancelled(self) -> None:
        self.end(Cancelled(self.job.id, 0.25))


class HandWorker:
    """A PredictorWorker. `obeys`: predictions end as canceled as soon as they are to."""

    def __init__(self, predictor: Callable[..., Any], slots: int = 1, obeys: bool = False) -> None:
        self.state = WorkerState.STARTING
        self.reason = ""
        self.setup = Setup()
        self.schema: dict[str, Any] | None = None
        self.permits: PermitPool | None = None
        self.running: list[Running] = []
        self.sickness: str | None = None
        self.n_checks = 0
        self.is_stopped = False
        self._predictor = predictor
        self._slots = slots
        self._obeys = obeys
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def go(self, state: WorkerState, reason: str = "") -> None:
        if state is WorkerState.READY:
            self.schema = signature.document(signature.read(self._predictor))
            self.permits = PermitPool(range(self._slots))
        self.state, self.reason = state, reason
        for listener in self._listeners:
            listener()

    def submit(self, job: PredictJob) -> PredictReader:
        assert self.permits is not None
        permit = self.permits.try_acquire()
        if permit is None:
            raise NoCapacity
        reader = PredictReader(lambda: self._cancel(running))
        running = Running(job, permit, reader)
        self.running.append(running)
        return reader

    def _cancel(self, running: Running) -> None:
        running.is_cancelled = True
        if self._obeys:
            running.permit.release()
            running.reader.add(Cancelled(running.job.id, 0.25), 1)

    def check_health(self) -> str | None:
        self.n_checks += 1
        return self.sickness

    def stop(self, timeout: float) -> None:
        self.is_stopped = True
        if self.state in (WorkerState.STARTING, WorkerState.READY):
            self.go(WorkerState.STOPPED)

    def kill(self) -> None:
        """Everything that runs dies, and its slots with it."""
        for running in self.running:
            if running.permit.is_held:
                running.permit.poison("killed")
                running.reader.add(Failed(running.job.id, 0.1, "WorkerCrash: the worker crashed: signal 9"), 1)
        if self.state is WorkerState.READY:
            self.go(WorkerState.DEFUNCT, "signal 9")


def settle() -> None:
    """Lets everybody else run until they wait."""
    for _ in range(5):
        gevent.idle()


def wait(prediction: Prediction) -> dict[str, Any]:
    """The prediction once it has ended."""
    if not prediction.is_finished:
        over = Event()
        prediction.listen(lambda change: over.set() if change is Change.COMPLETED else None)
        assert over.wait(TIMEOUT), f"it did not end: {prediction.view()}"
    return prediction.view()


def start(service: PredictionService, **call: Any) -> Prediction:
    """A new prediction, at its worker."""
    prediction, found = service.admit(PredictionCall(**call))
    assert found is CallOutcome.NEW
    settle()
    return prediction


@contextmanager
def serving(worker: HandWorker, **settings: Any) -> Iterator[PredictionService]:
    """A service whose worker is set up; shut down in the end."""
    service = PredictionService(worker, PredictionSettings(**settings))
    worker.go(WorkerState.READY)
    try:
        yield service
    finally:
        service.shutdown(0)
