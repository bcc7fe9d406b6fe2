"""Runs a child process that serves: the states of one life, and another process in place of one that died."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import gevent

from corosrv.contracts.jobs.setup import NEXT, WorkerState, check_move
from corosrv.workers.dispatch.estimates import Backoff
from corosrv.workers.wire.codec import Codec
from corosrv.workers.worker.parent.linked_process import (
    ControlIn,
    ControlListener,
    ControlOut,
    LaneIn,
    LaneOut,
    LinkedProcess,
)
from corosrv.workers.worker.parent.process import Exit

log = logging.getLogger("corosrv.worker")


class ServingProcess(ControlListener[ControlIn, LaneIn], Generic[ControlOut, ControlIn, LaneOut, LaneIn]):
    """One life of a child process: it is set up, serves, and ends. Belongs to the thread of one hub.

    What the messages of a kind of process are and mean, its subclass says.
    """

    _log = log
    _stopped = "the server was stopped"  # a reason, where nobody gave another
    _state_level = logging.INFO  # of the line of log for each change of state

    def __init__(
        self, control: Codec[ControlOut, ControlIn], lane: Codec[LaneOut, LaneIn], *, takes_fds: bool = False
    ) -> None:
        """`takes_fds`: descriptors may come with the messages of lanes."""
        self.state = WorkerState.STARTING
        self.reason = ""  # why it is SETUP_FAILED, DRAINING, DEFUNCT or STOPPED
        self._link: LinkedProcess[ControlOut, ControlIn, LaneOut, LaneIn] = LinkedProcess(
            self, control, lane, takes_fds=takes_fds
        )
        self._listeners: list[Callable[[], None]] = []
        self._is_stopping = False
        self._stop_reason = ""
        self._setup_timer: Any = None

    @property
    def name(self) -> str:
        """The name of the process in sentences of the log."""
        return "the process"

    @property
    def pid(self) -> int | None:
        """The process's id; None before it was started."""
        return self._link.pid if self._link.is_started else None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of state, the last time when the process was reaped; it must not wait."""
        self._listeners.append(listener)

    def _limit_setup(self, seconds: float, on_late: Callable[[str], None], fault: str) -> None:
        """Calls `on_late(fault)` unless the process leaves STARTING within these seconds."""
        self._unlimit_setup()
        self._setup_timer = gevent.get_hub().loop.timer(seconds)
        self._setup_timer.start(on_late, fault)

    def _unlimit_setup(self) -> None:
        if self._setup_timer is not None:
            self._setup_timer.close()
            self._setup_timer = None

    def on_end(self, exit: Exit, fault: str) -> None:
        if not NEXT[self.state]:
            return
        if self._is_stopping:
            self._enter_stopped()
        else:
            state = WorkerState.SETUP_FAILED if self.state is WorkerState.STARTING else WorkerState.DEFUNCT
            self._enter(state, self._describe_end(exit, fault))

    def _describe_end(self, exit: Exit, fault: str) -> str:
        return ": ".join(filter(None, (f"{self.name} ended with {exit}", fault)))

    def _stop_unstarted(self) -> bool:
        """Enters STOPPED if the process was never started; returns whether it was not."""
        if self._link.is_started:
            return False
        if self.state is WorkerState.STARTING:
            self._enter_stopped()
        return True

    def _enter_stopped(self) -> None:
        self._enter(WorkerState.STOPPED, self._stop_reason or self._stopped)

    def _enter(self, state: WorkerState, reason: str = "") -> None:
        check_move(self.state, state)
        self.state = state
        self.reason = reason
        self._unlimit_setup()
        if not NEXT[state]:
            self._on_over(reason)
        self._log.log(self._state_level, "%s is %s%s", self.name, state.value, reason and f": {reason}")
        self._notify()

    def _on_over(self, reason: str) -> None:
        """Fails whatever waits for the process, which is of no use any more."""

    @abstractmethod
    def stop(self, timeout: float) -> None:
        """Ends the process once nothing runs, or kills it after `timeout` seconds. Waits for its end."""

    def kill(self, fault: str = "") -> None:
        """Kills the process and all of its group. Does not wait for its end.

        `fault`: why; without one it was stopped, for good.
        """
        if not fault:
            self._is_stopping = True
        self._link.kill(fault)

    @abstractmethod
    def start(self) -> None:
        """Starts the process. Blocks the hub for milliseconds at most."""

    def _notify(self) -> None:
        _tell(self._listeners, self.name)


def _tell(listeners: Sequence[Callable[[], None]], name: str) -> None:
    for listener in listeners:
        try:
            listener()
        except Exception:  # the other listeners have to hear of it, and a dead process has to be followed by another
            log.exception("a listener to the state of %s failed", name)


ProcessT = TypeVar("ProcessT", bound=ServingProcess[Any, Any, Any, Any])

FIRST_PAUSE = 0.5  # seconds before a process follows one that died; doubled as long as none lives long
LONGEST_PAUSE = 30.0
LONG_LIFE = 60.0  # seconds after which a death counts as the first again


class SupervisedProcess(Generic[ProcessT]):
    """A process that is followed by another when it dies, after a pause. Belongs to the thread of one hub.

    A first process that cannot serve is not replaced: it would fail again. Later ones always are.
    """

    def __init__(
        self,
        make: Callable[[], ProcessT],
        *,
        is_wanted: bool = True,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        """Makes the first process. Without `is_wanted` no other follows."""
        self._make = make
        self._is_wanted = is_wanted
        self._backoff = Backoff(first_pause, longest_pause, LONG_LIFE)
        self._listeners: list[Callable[[], None]] = []
        self._restarting: gevent.Greenlet | None = None
        self.n_restarts = 0
        self.process = self._make_next()

    def _make_next(self) -> ProcessT:
        process = self._make()
        process.on_change(self._on_change)
        return process

    @property
    def state(self) -> WorkerState:
        """The state of the process at hand; STARTING while one is being started."""
        return self.process.state

    @property
    def reason(self) -> str:
        return self.process.reason

    @property
    def pid(self) -> int | None:
        return self.process.pid

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of state, also to that of a new process; it must not wait."""
        self._listeners.append(listener)

    def start(self) -> None:
        self.process.start()

    def stop(self, timeout: float) -> None:
        """Ends the process for good; see ServingProcess.stop. Waits."""
        self._give_up()
        self.process.stop(timeout)

    def kill(self) -> None:
        """Ends the process now, for good. Does not wait for it."""
        self._give_up()
        self.process.kill()

    def _give_up(self) -> None:
        self._is_wanted = False
        if self._restarting is not None:
            self._restarting.kill(block=False)

    def _on_change(self) -> None:
        if self.state is WorkerState.READY:
            self._backoff.succeed(time.monotonic())
        self._notify()
        has_died = self.state in (WorkerState.SETUP_FAILED, WorkerState.DEFUNCT)
        if has_died and self._is_wanted and self._is_worth_another():
            pause = self._backoff.fail(time.monotonic()) if self._is_own_fault() else 0.0
            self._restarting = gevent.spawn(self._restart, pause)

    def _is_worth_another(self) -> bool:
        return self.state is WorkerState.DEFUNCT or self.n_restarts > 0

    def _is_own_fault(self) -> bool:
        """Returns False for a process that was ended for what it was given to do: it is followed without a pause."""
        return True

    def _restart(self, pause: float) -> None:
        log.warning("%s is started again in %g s", self.process.name, pause)
        gevent.sleep(pause)
        self.n_restarts += 1
        self._start_next()

    def _start_next(self) -> None:
        self.process.stop(0.0)  # nothing of it is left, then
        self.process = self._make_next()
        self._notify()
        self.process.start()

    def _notify(self) -> None:
        _tell(self._listeners, self.process.name)
