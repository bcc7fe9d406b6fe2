"""Runs one life of an app worker process, which runs handlers: from its start to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import gevent
import msgspec

from corosrv.base.errors import CorosrvError, Misuse, ProtocolError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.setup import LogLine, WorkerState
from corosrv.workers.dispatch.host import CallListener, HandedCall, LaneGroup, Permit, RunningCall
from corosrv.workers.wire import calls, messages
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.worker.parent.app_call import AppCall
from corosrv.workers.worker.parent.app_watch import AppWatch, LineBudget, OutputLog
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig, fault_of_load, fault_of_registration, lane_groups
from corosrv.workers.worker.parent.call_services import CallServices
from corosrv.workers.worker.parent.slots import AppSlot, AppSlots, Handover
from corosrv.workers.worker.parent.worker_process import WorkerProcess

log = logging.getLogger("corosrv.worker")

UNSTARTED_PATIENCE = 2.0  # seconds that a worker has to end by itself which is not READY
STOP_MARGIN = 2.0  # seconds that a worker may take to end besides its on_stop


class AppProcess(
    WorkerProcess[
        calls.ControlToAppWorker,
        calls.ControlFromAppWorker,
        calls.LaneToAppWorker,
        calls.LaneFromAppWorker,
        AppCall,
    ]
):
    """One life of an app worker process, with the handlers of one pool. Belongs to the hub's thread; stop() waits.

    Its states: STARTING until the pool's handlers have registered, READY, DRAINING once it takes no new calls, and at
    last SETUP_FAILED, DEFUNCT (lost, hung or crashed) or STOPPED (as somebody wanted).
    """

    _state_level = logging.DEBUG  # its pool logs the same at INFO, and why

    def __init__(
        self,
        config: AppWorkerConfig,
        pool: str | None,
        place: str,
        incarnation: int,
        services: CallServices | None = None,
    ) -> None:
        """`pool`: None stops after the import, until one is chosen. `services`: None refuses whatever handlers ask."""
        format = msgspec.msgpack
        super().__init__(
            config,
            StructCodec(calls.ControlFromAppWorker, format),
            StructCodec(calls.LaneFromAppWorker, format),
            takes_fds=True,
        )
        self._config = config
        self.pool = pool  # None until one was chosen
        self._place = place
        self.incarnation = incarnation
        self.services = services or CallServices()
        self.pools: Sequence[calls.PoolCard] = ()  # of the application, once it was imported
        self.handlers: Sequence[HandlerCard] = ()
        self.groups: Sequence[LaneGroup] = ()
        self.rss = 0  # bytes of memory, as the last heartbeat says
        self.last_heartbeat: float | None = None  # of time.monotonic()
        self.served = 0  # calls that ended well
        self.failed = 0  # calls that ended in an error, whosever
        self.keys_at_loss: Sequence[str] = ()  # of the handlers that ran when it became DEFUNCT, or on poisoned slots
        self._poisoned_keys: list[str] = []  # of the handlers that ran on slots when they were poisoned
        self._handover: Handover | None = None  # once it has registered
        self._watch: AppWatch | None = None  # once it has registered
        self._started_at = 0.0  # of time.monotonic()
        self._import_time = 0.0  # seconds that the application took to be imported
        self._output = OutputLog(LineBudget(time.monotonic()))

    @property
    def id(self) -> str:
        return f"{self.pool or 'import'}/{self._place}"

    @property
    def name(self) -> str:
        return f"worker {self.id}"

    @property
    def is_draining(self) -> bool:
        return self.state is not WorkerState.READY

    @property
    def in_flight(self) -> int:
        """The number of slots that run a call or a batch."""
        return 0 if self._slots is None else self._slots.n_running

    # Start and registration.

    def start(self) -> None:
        self._started_at = time.monotonic()
        super().start()

    def _first_message(self) -> calls.ControlToAppWorker:
        config = self._config
        return calls.InitApp(config.app_ref, config.app_dir, config.is_factory, self.id if self.pool else "")

    @property
    def _setup_timeout(self) -> float | None:
        return self._config.start_timeout_s

    def choose(self, pool: str) -> None:
        """Chooses the pool of a worker that was made without one. Raises Misuse if it has one."""
        if self.pool is not None:
            raise Misuse(f"worker {self.id} has a pool already")
        self.pool = pool
        if self.pools:
            self._start_pool(pool)

    def _on_loaded(self, message: calls.Loaded) -> None:
        if self.pools or self.state is not WorkerState.STARTING:
            raise ProtocolError("the application was loaded twice, or too late")
        if not self._is_set_up_on_time:
            return
        if fault := fault_of_load(message):
            self._fail_setup(fault)
            return
        self.pools = tuple(message.pools)
        self._import_time = time.monotonic() - self._started_at
        self._unlimit_setup()
        if self.pool is not None:
            self._start_pool(self.pool)
        self._notify()

    def _start_pool(self, name: str) -> None:
        if not self._is_set_up_on_time:
            return
        if self._pool_card() is None:
            names = ", ".join(pool.name for pool in self.pools)
            self._fail_setup(f"the application has no pool {name!r}; it has {names}")
            return
        self._begin_limit(self._import_time)
        self._send(calls.StartPool(name, self.id))

    def _pool_card(self) -> calls.PoolCard | None:
        return next((pool for pool in self.pools if pool.name == self.pool), None)

    def _on_registered(self, message: calls.Registered) -> None:
        pool = self._pool_card()
        if pool is None or self._slots is not None:
            raise ProtocolError("handlers were registered twice, or before their pool was chosen")
        if not self._is_set_up_on_time:
            return
        if fault := fault_of_registration(message.handlers, pool):
            self._fail_setup(fault)
            return
        groups = lane_groups(message.handlers)
        permits = [group.permits for group in groups for _ in range(group.permits.total)]
        if not self._succeed_setup(len(permits)):
            return
        lanes = enumerate(zip(self._link.lanes, permits, strict=True))
        self._slots = AppSlots([AppSlot(slot_id, lane, pool_of_slot) for slot_id, (lane, pool_of_slot) in lanes])
        self._handover = Handover(self._slots, self, self._after_end)
        self.handlers, self.groups = tuple(message.handlers), groups
        config = self._config
        self._watch = AppWatch(
            config.lease_s, config.hang_grace_s, self._slots, self.handlers, self._lose, self._poison
        )  # fmt: skip
        self._enter(WorkerState.READY)

    # Calls.

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> RunningCall:
        """Hands a call over on the permit's slot, and owns the permit from then on. Never raises, never waits."""
        assert self._handover is not None, "a permit is of a worker that has registered"
        return self._handover.start(permit, call, listener, not self.is_draining)

    def _after_end(self) -> None:
        """Goes on once a slot is idle, or lost."""
        self._end_if_idle()
        self._notify()

    # What calls need of their worker.

    def send_cancel(self, call: AppCall, item: int, is_deadline: bool) -> None:
        self._send(calls.CancelCall(call.permit.slot, call.id, item, is_deadline))

    def write_output(self, source: str, text: str, request_id: str) -> None:
        origin = f"{self.id}[{self.pid}]" + (f" {request_id}" if request_id else "")
        self._output.write(origin, source, text, time.monotonic())

    def count_end(self, error: CorosrvError | None) -> None:
        if error is None:
            self.served += 1
        else:
            self.failed += 1

    # What the process says.

    def on_control(self, message: calls.ControlFromAppWorker) -> None:
        match message:
            case calls.Loaded():
                self._on_loaded(message)
            case calls.Registered():
                self._on_registered(message)
            case calls.Heartbeat():
                self._on_heartbeat(message)
            case messages.Log():
                if self.state is WorkerState.STARTING:
                    self.setup.add_logs(message.data)
                self.write_output(message.source, message.data, "")
            case calls.StartFailed():
                self._fail_setup(message.error)
            case messages.SlotFailed():
                if self._slots is None or message.slot not in self._slots:
                    raise ProtocolError(f"slot {message.slot} was lost, but the worker has no such slot")
                self._poison(message.slot, message.error)
            case messages.Fatal():
                self._on_abort(message.reason)
            case messages.DroppedLogs():
                log.warning("%s dropped %d logs in %d ms", self.name, message.count, message.interval_millis)
            case calls.WorkerStopped():
                log.debug("%s has stopped", self.name)

    def _on_heartbeat(self, message: calls.Heartbeat) -> None:
        self.rss = message.rss
        self.last_heartbeat = time.monotonic()
        if self._watch is not None:
            self._watch.heartbeat(self.last_heartbeat)

    def on_lane(self, lane: int, message: calls.LaneFromAppWorker, n_bytes: int) -> None:
        assert self._slots is not None
        slot = self._slots.of_lane(lane)
        call = slot.call
        if call is None and isinstance(message, (LogLine, calls.AskCancel, calls.AskTaken)):
            if isinstance(message, LogLine):  # of a thread that the handler has left behind
                self.write_output(message.source, message.data, "")
            return
        super().on_lane(lane, message, n_bytes)
        if slot.call is not call:
            self._after_end()

    def _poison(self, slot_id: int, reason: str) -> None:
        """Takes a slot out of use. What else runs may end, until its deadline; then the process is killed."""
        assert self._slots is not None
        assert self._watch is not None
        log.error("slot %d of %s is poisoned: %s", slot_id, self.name, reason)
        self._watch.add_flaw(slot_id, reason)
        if self.state is WorkerState.READY and self.in_flight == 0:
            self._lose(reason)  # no call has to end before
            return
        if self.state is WorkerState.READY:
            self._stop_taking(reason)  # before the end of a call makes room for another
        if (call := self._slots[slot_id].call) is not None:
            self._poisoned_keys.append(self.handlers[call.handler].key)
            self.send_cancel(call, -1, is_deadline=False)
        self._slots.poison(slot_id, reason)
        self._after_end()

    # The end.

    def drain(self, reason: str = "") -> None:
        """Takes no new calls from now on; ends the process with its on_stop when nothing runs. Twice is harmless.

        A worker that is not READY yet is ended at once.
        """
        self._stop_reason = self._stop_reason or reason
        if self.state is WorkerState.READY:
            self._stop_taking(reason)
            self._end_if_idle()
        elif self.state is WorkerState.STARTING and not self._is_stopping:
            if self._link.is_started:
                self._stop_worker(UNSTARTED_PATIENCE)
            else:
                self._is_stopping = True
                self._stop_unstarted()

    def _stop_taking(self, reason: str) -> None:
        assert self._slots is not None
        self._slots.retire_all()
        self._enter(WorkerState.DRAINING, reason)

    def _end_if_idle(self) -> None:
        if self.state is WorkerState.DRAINING and self.in_flight == 0 and not self._is_stopping:
            if self._watch is not None and self._watch.flaw:
                self._lose(self._watch.flaw)
            else:
                self._stop_worker(self._config.stop_grace_s + STOP_MARGIN)

    def _stop_worker(self, patience: float) -> None:
        self._is_stopping = True
        self._unwatch()
        self._send(calls.StopWorker(self._config.stop_grace_s * 1000))
        gevent.spawn(self._link.end_within, patience)

    def _end_unready(self) -> None:
        self._link.end_within(UNSTARTED_PATIENCE)

    def stop(self, timeout: float) -> None:
        """Drains, and waits for the end of the process; `timeout` is the time that running calls have.

        Then on_stop has stop_grace_s, and at last the process is killed.
        """
        self.drain("it was stopped")
        if self._link.is_started and not self._link.wait(timeout):
            if not self._is_stopping:
                self._stop_worker(self._config.stop_grace_s + STOP_MARGIN)
            self._link.end_within(self._config.stop_grace_s + STOP_MARGIN)

    def _on_over(self, reason: str) -> None:
        self._unwatch()
        if self.state is WorkerState.DEFUNCT and self._slots is not None:
            running = [self.handlers[call.handler].key for call in self._slots.calls]
            self.keys_at_loss = tuple(dict.fromkeys(self._poisoned_keys or running))
        super()._on_over(reason)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
