"""One life of the worker process that runs predictions: from its start to its end, whoever brings that about."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from corosrv.dispatch.permits import Permit, PermitPool
from corosrv.errors import ChannelClosed, ProtocolError
from corosrv.jobs import PredictJob
from corosrv.wire import messages
from corosrv.wire.codec import JsonCodec
from corosrv.worker.health_checks import HealthChecks
from corosrv.worker.input_file import predict_message
from corosrv.worker.linked_process import LinkedProcess
from corosrv.worker.predict_reader import PredictReader
from corosrv.worker.process import Exit
from corosrv.worker.setup import Setup
from corosrv.worker.slot import Running, Slot
from corosrv.worker.state import WorkerState, check_move

log = logging.getLogger("corosrv.worker")
printed = logging.getLogger("corosrv.predictor")  # what it prints outside of predictions

MAX_SLOTS = 64  # that a predictor may ask for by itself; an operator may give it more
TERMINATION = 5.0  # seconds between SIGTERM and SIGKILL for a worker that is not set up
DEATH = 2.0  # seconds that the kernel may take to end what was killed

Link = LinkedProcess[
    messages.ControlToWorker, messages.ControlToServer, messages.SlotToWorker, messages.SlotToServer
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What to run, and how."""

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
        self.schema: dict[str, Any] | None = None  # once it is READY, as are the permits
        self.permits: PermitPool | None = None
        self._slots: list[Slot] = []  # in the order of their channels
        self._by_id: dict[int, Slot] = {}
        self._link = Link(self, JsonCodec(messages.ControlToServer), JsonCodec(messages.SlotToServer))
        self._health = HealthChecks(self._send_health_check)
        self._listeners: list[Callable[[], None]] = []
        self._last_words = ""  # why it said that it would abort
        self._is_stopping = False
        self._is_over = Event()  # no process is left
        self._starting: gevent.Greenlet | None = None
        self._setup_timer: Any = None

    @property
    def pid(self) -> int | None:
        """Of the process; None before it was started."""
        return self._link.pid if self._link.is_started else None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Called after each change of state, and each poisoned slot. Must not wait."""
        self._listeners.append(listener)

    # Start and set-up.

    def start(self) -> None:
        """Returns at once; a greenlet does the rest."""
        self.setup.start()
        self._starting = gevent.spawn(self._start)
        if self._config.setup_timeout:
            error = f"the set-up timed out after {self._config.setup_timeout:g} s"
            self._setup_timer = gevent.get_hub().loop.timer(self._config.setup_timeout)
            self._setup_timer.start(self._fail_setup, error)

    def _start(self) -> None:
        config = self._config
        try:
            self._link.start(config.command, config.slots or MAX_SLOTS, config.env, config.cwd)
        except Exception as error:
            self._is_over.set()
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
        self.permits = PermitPool(ready.slots)
        self._link.use_lanes(len(ready.slots))
        self._slots = [Slot(number, channel) for number, channel in zip(ready.slots, self._link.lanes, strict=True)]
        self._by_id = {slot.id: slot for slot in self._slots}
        self.setup.succeed()
        self._enter(WorkerState.READY)

    def _fault_of(self, ready: messages.Ready) -> str:
        n_slots = len(ready.slots)
        if ready.protocol != messages.PROTOCOL:
            return f"the worker speaks protocol {ready.protocol}, and the server {messages.PROTOCOL}"
        if n_slots != len(set(ready.slots)) or not 1 <= n_slots <= len(self._link.lanes):
            return f"the worker offers the slots {ready.slots}, with {len(self._link.lanes)} channels"
        if self._config.slots not in (None, n_slots):
            return f"the worker offers {n_slots} slots, and {self._config.slots} were asked for"
        return ""

    def _fail_setup(self, error: str) -> None:
        if self.state is not WorkerState.STARTING or self._is_stopping:
            return
        self.setup.fail(error)
        self._enter(WorkerState.SETUP_FAILED, error)
        gevent.spawn(self._terminate)

    # Predictions.

    def submit(self, job: PredictJob, permit: Permit) -> PredictReader:
        """Takes over the permit, whatever happens; what goes wrong, the reader says with Failed.

        Waits only while a large input is written to a file.
        """
        reader = PredictReader(functools.partial(self._cancel, permit.slot, job.id))
        if not permit.is_held:  # the slot was poisoned meanwhile, maybe with all others
            reader.put(messages.Failed(job.id, 0.0, self._reason_against(permit.slot)), 0)
            return reader
        running = Running(job.id, permit, reader)
        slot = self._by_id[permit.slot]
        slot.begin(running)
        try:
            message = predict_message(job)
            if slot.running is running:  # the slot may have ended meanwhile
                slot.channel.send(message)
        except ChannelClosed:
            pass  # whoever reads the channel hears of it, and ends what runs
        except BaseException as error:  # a greenlet that is killed must not keep its slot
            slot.fail(f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
        return reader

    def _reason_against(self, slot_id: int) -> str:
        reasons = self.permits.reasons if self.permits is not None else {}
        return self.reason or reasons.get(slot_id, "") or "its permit has ended"

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
            case messages.DroppedLogs():
                log.warning("the worker dropped %d logs in %d ms", message.count, message.interval_millis)
            case messages.ShuttingDown():
                log.debug("the worker shuts down")

    def _on_log(self, message: messages.Log) -> None:
        if self.state is WorkerState.STARTING:
            self.setup.add_logs(message.data)
        else:
            printed.info("%s: %s", message.source, message.data.rstrip("\n"))

    def _on_slot_failed(self, message: messages.SlotFailed) -> None:
        if self.state is WorkerState.STARTING:
            self._fail_setup(message.error)
        elif (slot := self._by_id.get(message.slot)) is not None:
            self._poison(slot, message.error)
        else:
            raise ProtocolError(f"slot {message.slot} has failed, which there is not")

    def on_lane(self, lane: int, message: messages.SlotToServer, n_bytes: int) -> None:
        self._slots[lane].on_message(message, n_bytes)

    def wait_for_room(self, lane: int) -> None:
        self._slots[lane].wait_for_room()

    def on_lane_broken(self, lane: int, fault: str) -> None:
        self._poison(self._slots[lane], fault)

    def _poison(self, slot: Slot, reason: str) -> None:
        """Nothing runs on the slot any more; when it was the last one, the worker is of no use."""
        assert self.permits is not None
        log.error("slot %d is poisoned: %s", slot.id, reason)
        if slot.running is not None:
            self._cancel(slot.id, slot.running.id)
        slot.fail(reason, poison=reason)
        self.permits.poison(slot.id, reason)
        slot.channel.close()
        if self.permits.poisoned < self.permits.total:
            self._notify()
        elif self.state is WorkerState.READY:
            self._enter(WorkerState.DEFUNCT, f"all slots are poisoned: {reason}")
            self._link.kill()

    # Health.

    def check_health(self) -> str | None:
        """Asks the predictor's own check; None when it is well, else the reason. Waits, at most 5 s.

        Callers at the same time share one check, and as long as one hangs, no other is begun.
        """
        if self.state is not WorkerState.READY:
            return self.reason or "the worker is starting"
        return self._health.ask()

    def _send_health_check(self, check_id: str) -> None:
        self._send(messages.HealthCheck(check_id))

    # The end.

    def stop(self, timeout: float) -> None:
        """Ends the process, after what is running: it is killed after `timeout` seconds. Waits for its end.

        One that is still being set up is terminated, and killed after 5 s.
        """
        self._is_stopping = True
        if self._starting is None or not self._link.is_started:
            self._never_started()
        elif self.state is WorkerState.STARTING:
            self._terminate()
        else:
            self._send(messages.Shutdown())
            self._kill_after(timeout)

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
        self._is_over.set()
        if self.state is WorkerState.STARTING:
            self._stopped()

    def _terminate(self) -> None:
        """SIGTERM, and SIGKILL where that is not enough. Waits."""
        if self._link.is_started:
            self._link.terminate()
            self._kill_after(TERMINATION)

    def _kill_after(self, timeout: float) -> None:
        if not self._is_over.wait(timeout):
            self._link.kill()
            if not self._is_over.wait(DEATH):
                log.error("the worker, process %s, was killed and has not ended", self.pid)

    def on_end(self, exit: Exit, fault: str) -> None:
        error = ": ".join(filter(None, (f"the worker crashed with {exit}", fault or self._last_words)))
        if self._is_stopping and self.state in (WorkerState.STARTING, WorkerState.READY):
            self._stopped()
        elif self.state is WorkerState.STARTING:
            self._fail_setup(error)
        elif self.state is WorkerState.READY:
            self._end(WorkerState.DEFUNCT, error)
        self._is_over.set()

    def _stopped(self) -> None:
        if self.state is WorkerState.STARTING:
            self.setup.fail("the server was stopped")
        self._end(WorkerState.STOPPED, "server shut down")

    def _end(self, state: WorkerState, reason: str) -> None:
        for slot in self._slots:
            slot.fail(reason, poison=reason)
        self._enter(state, reason)

    def _enter(self, state: WorkerState, reason: str = "") -> None:
        check_move(self.state, state)
        self.state = state
        self.reason = reason
        if self._setup_timer is not None:
            self._setup_timer.close()
        if state is not WorkerState.READY:
            self._health.give_up(reason)
            if self.permits is not None:
                for slot in self._slots:
                    self.permits.poison(slot.id, reason)
        log.info("the worker is %s%s", state.value, reason and f": {reason}")
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                log.exception("a listener to the worker's state failed")

    def _send(self, message: messages.ControlToWorker) -> None:
        with contextlib.suppress(ChannelClosed):  # then its end is near, and says what is to be said
            self._link.control.send(message)
