"""The service in front of a predictor: creates, finds, follows and cancels predictions, reports health, shuts down."""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import gevent
from gevent.hub import get_hub

from corosrv.base.errors import IdTaken, NoCapacity, NotStreamed, ShuttingDown, Starting, TooManyReaders, WorkerGone
from corosrv.base.outgoing import Destinations, WebhookSigner
from corosrv.base.run_dir import OwnedFolder, sweep
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Done, Terminal, WorkerState
from corosrv.contracts.jobs.terms import TracePart
from corosrv.contracts.settings import PredictionSettings
from corosrv.dialects.predictions import health, parse
from corosrv.dialects.predictions.drain import Drain, Supervisor
from corosrv.dialects.predictions.files import Files
from corosrv.dialects.predictions.health import HealthState, PredictorHealth, SlotCounts
from corosrv.dialects.predictions.parse import PredictionCall
from corosrv.dialects.predictions.prediction import MAX_READERS, EventReader, History, Prediction, Status, utc_now
from corosrv.dialects.predictions.run import Run, log_prediction
from corosrv.dialects.predictions.values import InputSchema
from corosrv.dialects.predictions.webhooks import Deliveries, Webhooks
from corosrv.web.http.reply import line

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.predictor_process import PredictorWorker

log = logging.getLogger("corosrv.predictions")

_FOLDER_PREFIX = "corosrv-server-"


class CallOutcome(Enum):
    """The outcome of a call: a new prediction, or an earlier one with its id."""

    NEW = "new"
    RUNNING = "running"  # somebody asked for the same before
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start, and what runs now."""

    slots: SlotCounts
    n_running: int
    n_ended: dict[str, int]  # by status
    n_refused: int  # for want of a slot
    webhooks: Deliveries


class PredictionService:
    """Serves the predictor of one worker. Belongs to the hub's thread; only what says so waits.

    The worker is started by whoever made it, and stopped by `shutdown`.
    """

    def __init__(
        self,
        worker: PredictorWorker,
        settings: PredictionSettings,
        logs_json: bool = False,
        resume_s: float = 0.0,
        signer: WebhookSigner | None = None,
    ) -> None:
        """`logs_json`: whether the lines of ended predictions are JSON. `resume_s`: seconds for which a prediction runs
        on when the last client of its stream has left. `signer`: of webhooks."""
        self.worker = worker
        self.settings = settings
        self._logs_json = logs_json
        self._resume_s = resume_s
        self._left: dict[str, float] = {}  # when the last client of a stream left, by the prediction's id
        destinations = Destinations(settings.webhook_destinations)
        self.webhooks = Webhooks(
            settings.webhook_interval, settings.webhook_token, destinations=destinations, signer=signer
        )
        self._files = Files(settings.upload_url or None)
        self._folder = OwnedFolder(_FOLDER_PREFIX)
        self._supervisor = Supervisor(settings.result_ttl)
        self._runs: dict[str, Run] = {}
        self._bound_to_readers: set[str] = set()
        self._health = HealthState()
        self._schema: InputSchema | None = None
        self._is_accepting = True
        self._forgetting: Any = None
        self._ended = {status.value: 0 for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)}
        self._n_refused = 0
        self._drain = Drain(worker, self.webhooks)
        worker.on_change(self._on_worker_change)

    def start(self) -> None:
        """Removes files that servers left behind which were killed. Returns at once; a thread does it."""
        get_hub().threadpool.spawn(sweep, _FOLDER_PREFIX)

    # Starting predictions

    def admit(self, call: PredictionCall, trace: TracePart | None = None) -> tuple[Prediction, CallOutcome]:
        """Starts a prediction, or finds the one that an earlier call with its id started, in one step without a switch.
        Checks the input before that, and waits if it is large. `trace`: the request's.

        Raises Unavailable, NotStreamed, InvalidInput or IdTaken; then nothing has happened.
        """
        if call.is_put and call.id is not None and (running := self._supervisor.find_running(call.id)):
            return running, CallOutcome.RUNNING
        self.check()
        schema = self.schema
        if call.is_stream and not schema.is_streaming:
            raise NotStreamed
        input = schema.check(call.input, call.n_bytes)
        self.check()  # again: the worker may have gone meanwhile
        duplicate = self._find_duplicate(call, input)
        return duplicate if duplicate is not None else (self._accept(call, input, trace), CallOutcome.NEW)

    def check(self) -> None:
        """Raises Unavailable if no call can be accepted now."""
        state, reason = self.worker.state, self.worker.reason
        if not self._is_accepting or state is WorkerState.STOPPED:
            raise ShuttingDown("the server is shutting down")
        if state is WorkerState.STARTING:
            raise Starting("the predictor is still being set up")
        if state is WorkerState.SETUP_FAILED:
            raise WorkerGone(f"the predictor's setup failed: {reason}")
        if state is WorkerState.DEFUNCT:
            raise WorkerGone(f"the predictor's worker is gone: {reason}")

    @property
    def schema(self) -> InputSchema:
        """The schema of the predictor's inputs. Raises Unavailable until it is known."""
        if self._schema is None:
            self.check()
            raise Starting("the predictor is still being set up")
        return self._schema

    def _find_duplicate(self, call: PredictionCall, input: dict[str, Any]) -> tuple[Prediction, CallOutcome] | None:
        if call.id is None:
            return None
        if running := self._supervisor.find_running(call.id):
            if call.is_put:
                return running, CallOutcome.RUNNING
            raise IdTaken(f"prediction {call.id} is running, and no second one may have its id")
        if finished := self._supervisor.find_finished(call.id, time.monotonic()):
            if call.is_put and finished.input == input:
                return finished, CallOutcome.FINISHED
            raise IdTaken(f"id already used: {call.id} was another prediction, which has ended")
        return None

    def _accept(self, call: PredictionCall, input: dict[str, Any], trace: TracePart | None) -> Prediction:
        schema = self.schema
        history = History(self.settings.stream_history) if schema.is_streaming else None
        id = call.id or parse.new_id()
        prediction = Prediction(id, input, schema.mask(input), utc_now(), history, _is_list(schema.document))
        prediction.n_bytes = call.n_bytes
        directory = self._folder.new_path()
        context = call.context
        if trace is not None:
            trace.name_model(self.settings.predictor)
            trace = trace.begin("predict", {"corosrv.prediction_id": line(id)}, is_client=True)
            context = {**context, **dict(trace.headers())}
        try:
            reader = self.worker.submit(PredictJob(id, input, directory, context))
        except NoCapacity:
            self._n_refused += 1
            raise
        try:
            self._begin(prediction, Run(prediction, reader, self._files, directory, self._on_end, trace), call)
        except BaseException:  # whatever it is, nobody would ever read the answers
            reader.close()
            raise
        return prediction

    def _begin(self, prediction: Prediction, run: Run, call: PredictionCall) -> None:
        if call.receiver is not None:
            self.webhooks.attach(prediction, call.receiver)
        # It is known once nothing can go wrong with it any more.
        self._supervisor.add(prediction)
        self._runs[prediction.id] = run
        if call.is_stream:
            self._bound_to_readers.add(prediction.id)
        self._drain.add(run, gevent.spawn(run.run))

    def _on_end(self, run: Run, status: Status, error: str | None, terminal: Terminal | None) -> None:
        """Publishes a result. Its slot is free by now, so listeners may start the next prediction at once."""
        prediction = run.prediction
        del self._runs[prediction.id]
        self._bound_to_readers.discard(prediction.id)
        self._left.pop(prediction.id, None)
        self._ended[status.value] += 1
        self._supervisor.finish(prediction, time.monotonic())
        self._forget_later()
        if terminal is None:
            prediction.end(status, utc_now(), error)
        else:
            is_list = terminal.is_stream or (False if isinstance(terminal, Done) else None)  # None: it could not say
            prediction.end(status, utc_now(), error, terminal.predict_time, is_list)
        if run.trace is not None:
            outcome = prediction.error_type or prediction.status.value
            run.trace.end(error="" if prediction.status is Status.SUCCEEDED else outcome)
        log_prediction(prediction, self.settings.predictor, self._logs_json)
        self._drain.remove(run)

    def _forget_later(self) -> None:
        """Forgets finished predictions in time, even if nobody calls."""
        next_time = self._supervisor.forget(time.monotonic())
        if next_time is not None and self._forgetting is None:
            self._forgetting = gevent.spawn_later(next_time - time.monotonic(), self._forget)

    def _forget(self) -> None:
        self._forgetting = None
        self._forget_later()

    # Finding predictions

    def find(self, id: str) -> Prediction | None:
        """Returns a prediction that runs or ended lately, or None."""
        return self._supervisor.find(id, time.monotonic())

    def follow(self, prediction: Prediction, last_number: int | None, *, is_logged: bool = False) -> EventReader | None:
        """Returns a reader of the prediction's events after number `last_number`, None: from the first one on.

        `is_logged`: the reader's own log has waited for clients by the time that it leaves.

        Returns None if the predictor does not stream.

        Raises TooManyReaders.
        """
        history = prediction.history
        if history is None:
            return None
        if history.n_readers >= MAX_READERS:
            raise TooManyReaders(MAX_READERS)
        return EventReader(
            history, last_number, functools.partial(self._on_leave, prediction, 0.0 if is_logged else self._resume_s)
        )

    def _on_leave(self, prediction: Prediction, resume_s: float, has_left: bool) -> None:
        assert prediction.history is not None
        if not has_left or prediction.id not in self._bound_to_readers or prediction.history.n_readers:
            return
        if not resume_s:
            self.cancel(prediction.id)
            return
        self._left[prediction.id] = left_at = time.monotonic()
        gevent.spawn_later(resume_s, self._cancel_unless_resumed, prediction, left_at)

    def _cancel_unless_resumed(self, prediction: Prediction, left_at: float) -> None:
        """Cancels a prediction nobody has come back to since; whoever did and left again is waited for anew."""
        assert prediction.history is not None
        if self._left.get(prediction.id) == left_at:
            del self._left[prediction.id]
            if not prediction.history.n_readers and self._supervisor.find_running(prediction.id) is prediction:
                self.cancel(prediction.id)

    def cancel(self, id: str) -> bool:
        """Asks a running prediction to end; returns False if no prediction of this id runs. Never waits."""
        run = self._runs.get(id)
        if run is not None:
            run.cancel()
        return run is not None

    # Health

    @property
    def slots(self) -> SlotCounts:
        permits = self.worker.permits
        return SlotCounts() if permits is None else SlotCounts(permits.total, permits.in_use, permits.poisoned)

    @property
    def health(self) -> PredictorHealth:
        """The service's health, without asking the predictor's own check."""
        self._observe()
        return self._health.state

    def check_health(self) -> tuple[PredictorHealth, str | None]:
        """Returns the health, or UNHEALTHY and the reason if the predictor's own check fails. Waits."""
        state = self.health
        if state not in (PredictorHealth.READY, PredictorHealth.BUSY):
            return state, None
        error = self.worker.check_health()
        state = self.health  # it may have gone meanwhile
        if error is None or state not in (PredictorHealth.READY, PredictorHealth.BUSY):
            return state, None
        return PredictorHealth.UNHEALTHY, error

    def _on_worker_change(self) -> None:
        if self.worker.state is WorkerState.STARTING:
            self._health = HealthState()  # another life
        if self.worker.schema is not None and (self._schema is None or self._schema.document is not self.worker.schema):
            self._schema = InputSchema(self.worker.schema)
        self._observe()

    def _observe(self) -> None:
        self._health.move(health.of_worker(self._health.state, self.worker.state, self.slots))

    def stats(self) -> Stats:
        return Stats(
            self.slots, self._supervisor.n_running, dict(self._ended), self._n_refused, replace(self.webhooks.counts)
        )

    # The end

    def stop_accepting(self) -> None:
        """Refuses new calls with ShuttingDown; running predictions go on."""
        self._is_accepting = False

    def shutdown(self, timeout: float | None = None) -> None:
        """Lets running predictions end and their webhooks go out, then stops the worker. Waits for all of that.

        After `timeout` seconds (default: the drain time of the settings), or once `hasten` is called, the rest fails.
        """
        self.stop_accepting()
        self._drain.run(self.settings.drain_timeout if timeout is None else timeout)
        get_hub().threadpool.apply(self._folder.close)

    def close(self) -> None:
        """Removes the files of predictions, also without a shutdown. Waits for the disk."""
        self._folder.close()

    def hasten(self) -> None:
        """Hurries a running shutdown, for a second signal. Never waits."""
        self._drain.hasten()


def _is_list(document: dict[str, Any]) -> bool:
    """Returns whether the predictor yields the members of a list, so that a single output is a list, too."""
    return bool(document["components"]["schemas"]["Output"].get("x-cog-array-type") == "iterator")
