"""One life of the worker process that runs predictions: from its start to its end."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gevent

from corosrv.dispatch.permits import PermitPool
from corosrv.errors import ChannelClosed, ProtocolError, WorkerGone
from corosrv.jobs import PredictJob
from corosrv.jobs.setup import Setup
from corosrv.jobs.worker_state import WorkerState, check_move
from corosrv.wire import messages
from corosrv.wire.codec import StructCodec
from corosrv.worker.parent.health_checks import HealthChecks
from corosrv.worker.parent.linked_process import LinkedProcess
from corosrv.worker.parent.predict_reader import PredictReader
from corosrv.worker.parent.process import Exit
from corosrv.worker.parent.slots import Slots

log = logging.getLogger("corosrv.worker")
printed = logging.getLogger("corosrv.predictor")  # what it prints outside of predictions

MAX_SLOTS = 64  # that a predictor may ask for by itself; an operator may give it more
TERMINATION = 5.0  # seconds between SIGTERM and SIGKILL for a worker that is not set up
ABORT = 2.0  # seconds that a worker has to end which said that it would

Link = LinkedProcess[
    messages.ControlToWorker, messages.ControlToServer, messages.SlotToWorker, messages.SlotToServer
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """The settings of one worker process."""

    predictor: str  # FILE.py:CLASS, FILE.py:FUNCTION, or a module in place of the file
    slots: int | None = None  # None: as many as the predictor says
    setup_timeout: float | None = None  # seconds for the whole start; None: no limit
    env: Mapping[str, str] | None = None  # of the process, all of it; None: as the server's
    cwd: str | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "corosrv.worker")


class PredictorProcess:
    """Owns the process, its slots and their permits. Belongs to the thread of the hub that it was started on."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self.state = WorkerState.STARTING
        self.reason = ""  # why it is SETUP_FAILED, DEFUNCT or STOPPED
        self.setup = Setup()
        self.schema: dict[str, Any] | None = None  # once it is READY
        self._slots: Slots | None = None
        self._link = Link(self, StructCodec(messages.ControlToServer), StructCodec(messages.SlotToServer))
        self._health = HealthChecks(self._send_health_check)
        self._has_healthcheck = True
        self._listeners: list[Callable[[], None]] = []
        self._last_words = ""  # why it said that it would abort
        self._is_stopping = False
        self._starting: gevent.Greenlet | None = None
        self._setup_timer: Any = None

    @property
    def pid(self) -> int | None:
        """The process's id; None before it was started."""
        return self._link.pid if self._link.is_started else None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of state and each poisoned slot; it must not wait."""
        self._listeners.append(listener)

    # Start and set-up.

    def start(self) -> None:
        """Starts the process and its set-up in a greenlet. Never waits."""
        self.setup.start()
        self._starting = gevent.spawn(self._start)
        if self._config.setup_timeout:
            error = f"the set-up timed out after {self._config.setup_timeout:g} s"
            self._setup_timer = gevent.get_hub().loop.timer(self._config.setup_timeout)
            self._setup_timer.start(self._fail_setup, error)

    def refuse(self, reason: str) -> None:
        """Fails the set-up with this reason, in place of start()."""
        self.setup.start()
        self._fail_setup(reason)

    def _start(self) -> None:
        config = self._config
        try:
            self._link.start(config.command, config.env, config.cwd)
        except Exception as error:  # whatever it is, it is why the set-up failed
            self._fail_setup(f"the worker could not be started: {error}")
            return
        self._send(messages.Init(config.predictor, config.slots))

    def _on_ready(self, ready: messages.Ready) -> None:
        if self.state is not WorkerState.STARTING or self._is_stopping:
            return  # too late: its end has begun
        if fault := self._fault_of(ready):
            self._fail_setup(fault)
            return
        self.schema = ready.schema
        self._has_healthcheck = ready.has_healthcheck
        try:
            self._link.open_lanes(len(ready.slots), messages.Lanes())
        except OSError as error:
            self._fail_setup(f"the channels of {len(ready.slots)} slots could not be made: {error}")
            return
        self._slots = Slots(ready.slots, self._link.lanes, self._cancel)
        self.setup.succeed()
        self._enter(WorkerState.READY)

    def _fault_of(self, ready: messages.Ready) -> str:
        n_slots = len(ready.slots)
        if ready.protocol != messages.PROTOCOL:
            return f"the worker speaks protocol {ready.protocol}, and the server {messages.PROTOCOL}"
        if n_slots != len(set(ready.slots)) or n_slots < 1:
            return f"the worker offers the slots {ready.slots}"
        if self._config.slots is None and n_slots > MAX_SLOTS:
            return (
                f"the predictor wants {n_slots} slots, and may have {MAX_SLOTS} by its own word: "
                "choose more at the start (--slots)"
            )
        if self._config.slots not in (None, n_slots):
            return f"the worker offers {n_slots} slots, and {self._config.slots} were asked for"
        return ""

    def _fail_setup(self, error: str) -> None:
        if self.state is not WorkerState.STARTING or self._is_stopping:
            return
        self.setup.fail(error)
        self._enter(WorkerState.SETUP_FAILED, error)
        gevent.spawn(self._link.terminate, TERMINATION)

    # Predictions.

    @property
    def permits(self) -> PermitPool | None:
        """The pool of its slots; None until the worker is READY."""
        return None if self._slots is None else self._slots.permits

    def submit(self, job: PredictJob) -> PredictReader:
        """Runs a job on an idle slot. Never waits. Raises NoCapacity if there is none, WorkerGone before the set-up.

        What goes wrong later, the reader says with Failed.
        """
        if self._slots is None:
            raise WorkerGone(self.reason or "the worker is not set up")
        return self._slots.submit(job)

    def _cancel(self, slot_id: int, prediction: str) -> None:
        self._send(messages.Cancel(slot_id, prediction))

    # What the process says.

    def on_control(self, message: messages.ControlToServer) -> None:
        match message:
            case messages.Ready():
                self._on_ready(message)
            case messages.Log():
                self._on_log(message)
            case messages.HealthCheckResult():
                is_well = message.status == "healthy"
                self._health.answer(message.id, None if is_well else message.error or "the health check failed")
            case messages.SlotFailed():
                self._on_slot_failed(message)
            case messages.Fatal():
                self._last_words = message.reason
                log.error("the worker is about to abort: %s", message.reason)
                gevent.spawn(self._link.end_within, ABORT)
            case messages.DroppedLogs():
                log.warning("the worker dropped %d logs in %d ms", message.count, message.interval_millis)
            case messages.WorkerLeaving():
                log.debug("the worker shuts down")

    def _on_log(self, message: messages.Log) -> None:
        if self.state is WorkerState.STARTING:
            self.setup.add_logs(message.data)
        else:
            printed.info("%s: %s", message.source, message.data.rstrip("\n"))

    def _on_slot_failed(self, message: messages.SlotFailed) -> None:
        if self._slots is None:
            self._fail_setup(message.error)
        elif message.slot in self._slots:
            self._poison(message.slot, message.error)
        else:
            raise ProtocolError(f"slot {message.slot} has failed, but the worker has no such slot")

    def on_lane(self, lane: int, message: messages.SlotToServer, n_bytes: int) -> None:
        assert self._slots is not None
        self._slots.on_message(lane, message, n_bytes)

    def wait_for_room(self, lane: int) -> None:
        assert self._slots is not None
        self._slots.wait_for_room(lane)

    def on_lane_broken(self, lane: int, fault: str) -> None:
        assert self._slots is not None
        self._poison(self._slots.id_of(lane), fault)

    def _poison(self, slot_id: int, reason: str) -> None:
        """Takes a slot out of use; ends the worker if it was the last."""
        assert self._slots is not None
        self._slots.poison(slot_id, reason)
        permits = self._slots.permits
        if permits.poisoned < permits.total:
            self._notify()
        elif self.state is WorkerState.READY:
            self._enter(WorkerState.DEFUNCT, f"all slots are poisoned: {reason}")
            self._link.kill()

    # Health.

    def check_health(self) -> str | None:
        """Runs the predictor's own check; returns None if it is healthy, else the reason. Waits, at most 5 s.

        Callers at the same time share one check, and as long as one hangs, no other is begun. A predictor without a
        check is well, and is not asked: native code may keep its interpreter from answering.
        """
        if self.state is not WorkerState.READY:
            return self.reason or "the worker is starting"
        if not self._has_healthcheck:
            return None
        return self._health.ask()

    def _send_health_check(self, check_id: str) -> None:
        self._send(messages.HealthCheck(check_id))

    # The end.

    def stop(self, timeout: float) -> None:
        """Ends the process once nothing runs, or kills it after `timeout` seconds. Waits for its end.

        One that is still being set up is terminated, and killed after 5 s.
        """
        self._is_stopping = True
        if not self._link.is_started:
            self._never_started()
        elif self.state is WorkerState.STARTING:
            self._link.terminate(TERMINATION)
        else:
            self._send(messages.Shutdown())
            self._link.end_within(timeout)

    def kill(self) -> None:
        """Ends the process and all of its group now. Does not wait for it."""
        self._is_stopping = True
        if self._link.is_started:
            self._link.kill()
        else:
            self._never_started()

    def _never_started(self) -> None:
        if self._starting is not None:
            self._starting.kill(block=False)
        if self.state is WorkerState.STARTING:
            self._stopped()

    def on_end(self, exit: Exit, fault: str) -> None:
        error = ": ".join(filter(None, (f"the worker crashed with {exit}", fault or self._last_words)))
        if self._is_stopping and self.state in (WorkerState.STARTING, WorkerState.READY):
            self._stopped()
        elif self.state is WorkerState.STARTING:
            self._fail_setup(error)
        elif self.state is WorkerState.READY:
            self._enter(WorkerState.DEFUNCT, error)

    def _stopped(self) -> None:
        if self.state is WorkerState.STARTING:
            self.setup.fail("the server was stopped")
        self._enter(WorkerState.STOPPED, "server shut down")

    def _enter(self, state: WorkerState, reason: str = "") -> None:
        check_move(self.state, state)
        self.state = state
        self.reason = reason
        if self._setup_timer is not None:
            self._setup_timer.close()
        if state is not WorkerState.READY:
            self._health.give_up(reason)
            if self._slots is not None:
                self._slots.poison_all(reason)
        log.info("the worker is %s%s", state.value, reason and f": {reason}")
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # the other listeners have to hear of it
                log.exception("a listener to the worker's state failed")

    def _send(self, message: messages.ControlToWorker) -> None:
        with contextlib.suppress(ChannelClosed):  # then its end is near, and says what is to be said
            self._link.control.send(message)
