"""Runs one life of a worker process, whatever it serves: its set-up, its slots and its end."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol

import gevent

from corosrv.base.errors import ChannelClosed
from corosrv.contracts.jobs.setup import NEXT, Setup, WorkerState, check_move
from corosrv.workers.wire.codec import Codec
from corosrv.workers.wire.messages import Lanes
from corosrv.workers.worker.parent.linked_process import ControlIn, ControlOut, LinkedProcess
from corosrv.workers.worker.parent.process import Exit
from corosrv.workers.worker.parent.slots import Call, LaneIn, LaneOut, Slots

log = logging.getLogger("corosrv.worker")

TERMINATION = 5.0  # seconds between SIGTERM and SIGKILL for a worker that is not set up
ABORT = 2.0  # seconds that a worker has to end which said that it would


class ProcessConfig(Protocol):
    """Says how a process is started."""

    @property
    def command(self) -> Sequence[str]: ...

    @property
    def env(self) -> Mapping[str, str] | None:
        """The whole environment of the process; None: the server's, without its secrets."""

    @property
    def cwd(self) -> str | None: ...


class WorkerProcess(ABC, Generic[ControlOut, ControlIn, LaneOut, LaneIn, Call]):
    """Owns the process, its slots and their permits. Belongs to the thread of the hub that it was started on.

    What the messages of a kind of worker are and mean, its subclass says: one for predictors, and one for apps.
    """

    _state_level = logging.INFO  # of the line of log for each change of state

    def __init__(
        self,
        config: ProcessConfig,
        control: Codec[ControlOut | Lanes, ControlIn],
        lane: Codec[LaneOut, LaneIn],
        *,
        takes_fds: bool = False,
    ) -> None:
        """`takes_fds`: descriptors may come with the messages of lanes."""
        self._process_config = config
        self.state = WorkerState.STARTING
        self.reason = ""  # why it is SETUP_FAILED, DRAINING, DEFUNCT or STOPPED
        self.setup = Setup()
        self._slots: Slots[LaneOut, LaneIn, Call] | None = None
        self._link = LinkedProcess(self, control, lane, takes_fds=takes_fds)
        self._listeners: list[Callable[[], None]] = []
        self._last_words = ""  # why it said that it would abort
        self._is_stopping = False
        self._stop_reason = ""
        self._starting: gevent.Greenlet | None = None
        self._setup_timer: Any = None

    @property
    def name(self) -> str:
        """The name of the worker in sentences of the log."""
        return "the worker"

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
        self._limit_setup()

    def _start(self) -> None:
        try:
            self._link_process()
        except Exception as error:  # whatever it is, it is why the set-up failed
            self._fail_setup(f"the worker could not be started: {error}")
            return
        self._send(self._first_message())

    def _link_process(self) -> None:
        """Starts the process and opens its control channel. Raises OSError."""
        config = self._process_config
        self._link.start(config.command, config.env, config.cwd)

    @abstractmethod
    def _first_message(self) -> ControlOut:
        """Returns the message that begins the set-up."""

    @property
    @abstractmethod
    def _setup_timeout(self) -> float | None:
        """The seconds that the set-up may take; None: no limit."""

    def _limit_setup(self, used: float = 0.0) -> None:
        """Begins the time of the set-up, of which `used` seconds are over."""
        self._unlimit_setup()
        if seconds := self._setup_timeout:
            self._setup_timer = gevent.get_hub().loop.timer(max(seconds - used, 0.0))
            self._setup_timer.start(self._fail_setup, f"the set-up timed out after {seconds:g} s")

    def _unlimit_setup(self) -> None:
        if self._setup_timer is not None:
            self._setup_timer.close()
            self._setup_timer = None

    @property
    def _is_set_up_on_time(self) -> bool:
        """False when a word of the set-up comes too late: the end has begun."""
        return self.state is WorkerState.STARTING and not self._is_stopping

    def _fail_setup(self, error: str) -> None:
        if not self._is_set_up_on_time:
            return
        self.setup.fail(error)
        self._enter(WorkerState.SETUP_FAILED, error)
        gevent.spawn(self._end_unready)

    def _end_unready(self) -> None:
        """Ends a process that is not set up, and gives it a little time for that. Waits."""
        self._link.terminate(TERMINATION)

    def _succeed_setup(self, n_lanes: int) -> bool:
        """Opens the lanes that the slots use; returns False, and fails the set-up, where that is not possible."""
        try:
            self._link.open_lanes(n_lanes, Lanes())
        except OSError as error:
            self._fail_setup(f"the channels of {n_lanes} slots could not be made: {error}")
            return False
        self.setup.succeed()
        return True

    # What the process says.

    @abstractmethod
    def on_control(self, message: ControlIn) -> None:
        """Handles a control message. Raises WireError for an invalid one: the process is killed."""

    def on_lane(self, lane: int, message: LaneIn, n_bytes: int) -> None:
        assert self._slots is not None
        self._slots.of_lane(lane).on_message(message, n_bytes)

    def wait_for_room(self, lane: int) -> None:
        assert self._slots is not None
        self._slots.of_lane(lane).wait_for_room()

    def on_lane_broken(self, lane: int, fault: str) -> None:
        assert self._slots is not None
        self._poison(self._slots.of_lane(lane).id, fault)

    def _poison(self, slot_id: int, reason: str) -> None:
        """Takes a slot out of use; ends the worker if it was the last."""
        assert self._slots is not None
        log.error("slot %d of %s is poisoned: %s", slot_id, self.name, reason)
        self._slots.poison(slot_id, reason)
        if self._slots.is_any_usable:
            self._notify()
        else:
            self._lose(f"all slots are poisoned: {reason}")

    def _on_abort(self, reason: str) -> None:
        """Gives a worker that ends itself the time to do so."""
        self._last_words = reason
        log.error("%s is about to abort: %s", self.name, reason)
        gevent.spawn(self._link.end_within, ABORT)

    # The end.

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

    def _lose(self, reason: str) -> None:
        """Gives up a process that is of no use any more, and fails what runs there at once."""
        if self.state in (WorkerState.READY, WorkerState.DRAINING):
            self._enter(WorkerState.DEFUNCT, reason)
            self._link.kill()

    def on_end(self, exit: Exit, fault: str) -> None:
        error = ": ".join(filter(None, (self._describe_end(exit), fault or self._last_words)))
        if not NEXT[self.state]:
            return
        if self._is_stopping:
            self._stopped()
        elif self.state is WorkerState.STARTING:
            self._fail_setup(error)
        else:
            self._enter(WorkerState.DEFUNCT, error)

    def _describe_end(self, exit: Exit) -> str:
        return f"the worker crashed with {exit}"

    def _stopped(self) -> None:
        if self.state is WorkerState.STARTING:
            self.setup.fail("the server was stopped")
        self._enter(WorkerState.STOPPED, self._stop_reason or "server shut down")

    def _enter(self, state: WorkerState, reason: str = "") -> None:
        check_move(self.state, state)
        self.state = state
        self.reason = reason
        self._unlimit_setup()
        if not NEXT[state]:
            self._on_over(reason)
        log.log(self._state_level, "%s is %s%s", self.name, state.value, reason and f": {reason}")
        self._notify()

    def _on_over(self, reason: str) -> None:
        """Fails whatever waits for the process, which is of no use any more."""
        if self._slots is not None:
            self._slots.poison_all(reason)

    def _notify(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # the other listeners have to hear of it
                log.exception("a listener to the worker's state failed")

    def _send(self, message: ControlOut) -> None:
        with contextlib.suppress(ChannelClosed):  # then its end is near, and says what is to be said
            self._link.control.send(message)
