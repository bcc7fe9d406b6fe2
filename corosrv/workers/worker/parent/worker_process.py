"""Runs one life of a worker process, whatever it serves: its set-up, its slots and its end."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol

import gevent

from corosrv.base.errors import ChannelClosed
from corosrv.contracts.jobs.setup import Setup, WorkerState
from corosrv.workers.wire.codec import Codec
from corosrv.workers.wire.messages import Lanes
from corosrv.workers.worker.parent.linked_process import ControlIn, ControlOut
from corosrv.workers.worker.parent.process import Exit
from corosrv.workers.worker.parent.slots import Call, LaneIn, LaneOut, Slots
from corosrv.workers.worker.parent.supervised import ServingProcess

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


class WorkerProcess(
    ServingProcess[ControlOut | Lanes, ControlIn, LaneOut, LaneIn],
    Generic[ControlOut, ControlIn, LaneOut, LaneIn, Call],
):
    """Owns the process, its slots and their permits. Belongs to the thread of the hub that it was started on.

    What the messages of a kind of worker are and mean, its subclass says: one for predictors, and one for apps.
    """

    _stopped = "server shut down"

    def __init__(
        self,
        config: ProcessConfig,
        control: Codec[ControlOut | Lanes, ControlIn],
        lane: Codec[LaneOut, LaneIn],
        *,
        takes_fds: bool = False,
    ) -> None:
        """`takes_fds`: descriptors may come with the messages of lanes."""
        super().__init__(control, lane, takes_fds=takes_fds)
        self._process_config = config
        self.setup = Setup()
        self._slots: Slots[LaneOut, LaneIn, Call] | None = None
        self._last_words = ""  # why it said that it would abort
        self._starting: gevent.Greenlet | None = None

    @property
    def name(self) -> str:
        return "the worker"

    # Start and set-up.

    def start(self) -> None:
        """Starts the process and its set-up in a greenlet. Never waits."""
        self.setup.start()
        self._starting = gevent.spawn(self._start)
        self._begin_limit()

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

    def _begin_limit(self, used: float = 0.0) -> None:
        """Begins the time of the set-up, of which `used` seconds are over."""
        if seconds := self._setup_timeout:
            fault = f"the set-up timed out after {seconds:g} s"
            self._limit_setup(max(seconds - used, 0.0), self._fail_setup, fault)

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

    def kill(self, fault: str = "") -> None:
        super().kill(fault)
        self._stop_unstarted()

    def _stop_unstarted(self) -> bool:
        if not self._link.is_started and self._starting is not None:
            self._starting.kill(block=False)
        return super()._stop_unstarted()

    def _lose(self, reason: str) -> None:
        """Gives up a process that is of no use any more, and fails what runs there at once."""
        if self.state in (WorkerState.READY, WorkerState.DRAINING):
            self._enter(WorkerState.DEFUNCT, reason)
            self._link.kill()

    def on_end(self, exit: Exit, fault: str) -> None:
        if self.state is WorkerState.STARTING and not self._is_stopping:
            self._fail_setup(self._describe_end(exit, fault))
        else:
            super().on_end(exit, fault)

    def _describe_end(self, exit: Exit, fault: str) -> str:
        return ": ".join(filter(None, (self._exit_words(exit), fault or self._last_words)))

    def _exit_words(self, exit: Exit) -> str:
        return f"the worker crashed with {exit}"

    def _enter_stopped(self) -> None:
        if self.state is WorkerState.STARTING:
            self.setup.fail("the server was stopped")
        super()._enter_stopped()

    def _on_over(self, reason: str) -> None:
        if self._slots is not None:
            self._slots.poison_all(reason)

    def _send(self, message: ControlOut) -> None:
        with contextlib.suppress(ChannelClosed):  # then its end is near, and says what is to be said
            self._link.control.send(message)
