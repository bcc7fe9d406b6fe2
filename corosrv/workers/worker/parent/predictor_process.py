"""Runs one life of the worker process of a predictor: from its start to its end.

`PredictorWorker` acts as one worker over several lives.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gevent

from corosrv.base.errors import NoCapacity, ProtocolError, WorkerGone
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Setup, WorkerState
from corosrv.workers.dispatch.host import PermitPool
from corosrv.workers.wire import messages
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.worker.parent.predict_call import (
    HealthChecks,
    PredictCall,
    PredictReader,
    large_message,
    small_message,
)
from corosrv.workers.worker.parent.slots import Slot, Slots
from corosrv.workers.worker.parent.supervised import SupervisedProcess
from corosrv.workers.worker.parent.worker_process import WorkerProcess

log = logging.getLogger("corosrv.worker")
printed = logging.getLogger("corosrv.predictor")  # what it prints outside of predictions

MAX_SLOTS = 64  # that a predictor may ask for by itself; an operator may give it more

_Slot = Slot[messages.SlotToWorker, messages.SlotToServer, PredictCall]


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Holds the settings of one worker process."""

    predictor: str  # FILE.py:CLASS, FILE.py:FUNCTION, or a module in place of the file
    slots: int | None = None  # None: as many as the predictor says
    setup_timeout: float | None = None  # seconds for the whole start; None: no limit
    env: Mapping[str, str] | None = None  # of the process, all of it; None: as the server's
    cwd: str | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "corosrv.workers.worker")


class PredictorProcess(
    WorkerProcess[
        messages.ControlToWorker,
        messages.ControlToServer,
        messages.SlotToWorker,
        messages.SlotToServer,
        PredictCall,
    ]
):
    """Sets a predictor up, and runs one prediction at a time on each of its slots."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config, StructCodec(messages.ControlToServer), StructCodec(messages.SlotToServer))
        self._config = config
        self.schema: dict[str, Any] | None = None  # once it is READY
        self.permits: PermitPool | None = None  # of its slots, once it is READY
        self._health = HealthChecks(self._send_health_check)
        self._has_healthcheck = True
        self.is_unloadable = False  # why it is SETUP_FAILED: its code could not be loaded

    # Start and set-up.

    def refuse(self, reason: str) -> None:
        """Fails the set-up with this reason, in place of start()."""
        self.setup.start()
        self._fail_setup(reason)

    def _first_message(self) -> messages.ControlToWorker:
        return messages.Init(self._config.predictor, self._config.slots)

    @property
    def _setup_timeout(self) -> float | None:
        return self._config.setup_timeout

    def _on_ready(self, ready: messages.Ready) -> None:
        if not self._is_set_up_on_time:
            return
        if fault := self._fault_of(ready):
            self._fail_setup(fault)
            return
        self.schema = ready.schema
        self._has_healthcheck = ready.has_healthcheck
        if not self._succeed_setup(len(ready.slots)):
            return
        self.permits = PermitPool(ready.slots)
        lanes = zip(ready.slots, self._link.lanes, strict=True)
        self._slots = Slots([_Slot(slot_id, channel, self.permits) for slot_id, channel in lanes])
        self._enter(WorkerState.READY)

    def _fault_of(self, ready: messages.Ready) -> str:
        n_slots = len(ready.slots)
        if ready.protocol != messages.PROTOCOL:
            return f"the worker speaks protocol {ready.protocol}, and the server {messages.PROTOCOL}"
        if n_slots != len(set(ready.slots)) or n_slots < 1:
            return f"the worker offers the slots {ready.slots}"
        if self._config.slots is None and n_slots > MAX_SLOTS:
            return (
                f"the predictor asks for {n_slots} slots, and may have {MAX_SLOTS} unless an operator allows more "
                "(--slots)"
            )
        if self._config.slots not in (None, n_slots):
            return f"the worker offers {n_slots} slots, and {self._config.slots} were asked for"
        return ""

    # Predictions.

    def submit(self, job: PredictJob) -> PredictReader:
        """Runs a job on an idle slot. Never waits: a large input is sent when it is written.

        Raises NoCapacity if there is no idle slot, WorkerGone before the set-up. What goes wrong later, the reader says
        with Failed.
        """
        if self._slots is None or self.permits is None:
            raise WorkerGone(self.reason or "the worker is not set up")
        permit = self.permits.try_acquire()
        if permit is None:
            raise NoCapacity
        call = PredictCall(job.id, permit, PredictReader(functools.partial(self._cancel, permit.slot, job.id)))
        slot = self._slots[permit.slot]
        slot.begin(call)
        try:
            message = small_message(job)
            if message is not None:
                slot.send(message)
            else:
                call.sending = gevent.spawn(self._send_large, slot, call, job)
        except Exception as error:  # whatever keeps the job from its slot is the job's own failure
            slot.fail(f"{type(error).__name__}: {error}")
        return call.reader

    def _send_large(self, slot: _Slot, call: PredictCall, job: PredictJob) -> None:
        try:
            message = large_message(job)
            if slot.call is call:
                slot.send(message)
        except Exception as error:  # as in submit
            if slot.call is call:
                call.sending = None
                slot.fail(f"{type(error).__name__}: {error}")

    def _cancel(self, slot_id: int, prediction: str) -> None:
        self._send(messages.Cancel(slot_id, prediction))

    def _poison(self, slot_id: int, reason: str) -> None:
        assert self._slots is not None
        if (call := self._slots[slot_id].call) is not None:
            self._cancel(slot_id, call.id)
        super()._poison(slot_id, reason)

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
                self._on_abort(message.reason)
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
            self.is_unloadable = message.is_unloadable
            self._fail_setup(message.error)
        elif message.slot in self._slots:
            self._poison(message.slot, message.error)
        else:
            raise ProtocolError(f"slot {message.slot} has failed, but the worker has no such slot")

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
        if self._stop_unstarted():
            return
        if self.state is WorkerState.STARTING:
            self._end_unready()
        else:
            self._send(messages.Shutdown())
            self._link.end_within(timeout)

    def _on_over(self, reason: str) -> None:
        self._health.give_up(reason)
        super()._on_over(reason)


FIRST_PAUSE = 1.0  # seconds before a process follows one that died
LONGEST_PAUSE = 60.0


class PredictorWorker(SupervisedProcess[PredictorProcess]):
    """Acts as one worker over a sequence of processes. Belongs to the hub's thread."""

    def __init__(self, make: Callable[[], PredictorProcess], is_wanted: bool, first_pause: float = FIRST_PAUSE) -> None:
        super().__init__(make, is_wanted=is_wanted, first_pause=first_pause, longest_pause=LONGEST_PAUSE)

    @property
    def setup(self) -> Setup:
        return self.process.setup

    @property
    def schema(self) -> dict[str, Any] | None:
        return self.process.schema

    @property
    def permits(self) -> PermitPool | None:
        return self.process.permits

    def submit(self, job: PredictJob) -> PredictReader:
        return self.process.submit(job)

    def check_health(self) -> str | None:
        return self.process.check_health()

    def refuse(self, reason: str) -> None:
        """Fails the set-up with this reason, in place of start()."""
        self.process.refuse(reason)

    @property
    def is_unloadable(self) -> bool:
        """True when the first process has found that the predictor's code cannot be loaded."""
        return self.n_restarts == 0 and self.process.is_unloadable
