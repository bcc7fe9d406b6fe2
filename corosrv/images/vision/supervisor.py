"""Keeps an encoder process running: starts it, and another in place of one that died.

Images that a process died of are remembered and at last refused. From the restarts it decides whether the encoder is
worth waiting for.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from gevent.event import Event

from corosrv.base.errors import LoadError, ShuttingDown
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.images.transfer.pool import SharedPool
from corosrv.images.vision.link import EncoderCommand, EncoderLink
from corosrv.images.vision.pump import TransferPump
from corosrv.workers.worker.parent.supervised import SupervisedProcess

MOST_CRASHES = 2
MEMORY = 600.0  # seconds
MAX_SUSPECTS = 1024  # the oldest are forgotten


class CrashSuspects:
    """Counts the crashes of each image, known by its SHA-256. The caller passes the time in."""

    def __init__(self) -> None:
        self._crashes: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number, and time of the last one

    def add(self, sha256: str, now: float) -> None:
        """Counts a crash while this image was being encoded."""
        n_crashes = self._count(sha256, now) + 1
        self._crashes[sha256] = n_crashes, now
        self._crashes.move_to_end(sha256)
        if len(self._crashes) > MAX_SUSPECTS:
            self._crashes.popitem(last=False)

    def is_refused(self, sha256: str, now: float) -> bool:
        """Returns whether the image crashed the encoder twice, the last time less than ten minutes ago."""
        return self._count(sha256, now) >= MOST_CRASHES

    def _count(self, sha256: str, now: float) -> int:
        n_crashes, last_at = self._crashes.get(sha256, (0, now))
        return n_crashes if now - last_at < MEMORY else 0


MOST_RESTARTS = 3
WINDOW = 60.0  # seconds in which so many restarts are too many
RECOVERY = 60.0  # seconds that a process has to serve before it is trusted again


class StabilityRecord:
    """Records the restarts of one encoder. The caller passes the time in."""

    def __init__(self) -> None:
        self._restarts: deque[float] = deque(maxlen=MOST_RESTARTS)
        self._serves_since = math.inf
        self._is_unstable = False

    def note_restart(self, now: float) -> None:
        """Records that a process follows one whose death was recorded."""
        self._restarts.append(now)
        if len(self._restarts) == MOST_RESTARTS and now - self._restarts[0] <= WINDOW:
            self._is_unstable = True

    def note_ready(self, now: float) -> None:
        self._serves_since = now

    def note_death(self) -> None:
        """Records that the process has ended."""
        self._serves_since = math.inf

    def is_unstable(self, now: float) -> bool:
        """Returns whether there were too many restarts, and none has served for long enough since."""
        if now - self._serves_since >= RECOVERY:
            self._is_unstable = False
        return self._is_unstable


class EncoderSupervisor(SupervisedProcess[EncoderLink]):
    """Keeps one encoder process running, and counts the epochs. Belongs to the thread of one hub."""

    def __init__(
        self, command: EncoderCommand, pool: SharedPool, pump: TransferPump, on_crash: Callable[[str | None], None]
    ) -> None:
        """Calls `on_crash` before transfers are told that a process was reaped.

        It gets the SHA-256 of the image that was being encoded, or None, and must not wait.
        """
        self._pump = pump
        self._on_crash = on_crash
        self._stability = StabilityRecord()
        self._is_settled = Event()  # the first process serves, or never will
        self._was_late = False  # the last process that ended was killed for an image that took too long
        super().__init__(lambda: EncoderLink(command, pool, self.n_restarts + 1, pump.deliver))

    @property
    def is_unstable(self) -> bool:
        """Returns whether there were three restarts within a minute, and no process has served for a minute since."""
        return self._stability.is_unstable(time.monotonic())

    def start(self) -> None:
        """Starts the first process; waits until it serves. Raises LoadError where it cannot, and ShuttingDown."""
        super().start()
        self._is_settled.wait()  # this ends: a process that is not ready in time is killed
        if not self._is_wanted:
            raise ShuttingDown("the model is being unloaded")
        if self.state is not WorkerState.READY:
            raise LoadError(self.reason)

    def _on_change(self) -> None:
        if self.state is WorkerState.READY:
            self._stability.note_ready(time.monotonic())
            self._pump.encoder_up(self.process)
        else:
            self._stability.note_death()
            self._on_crash(self._pump.current_image)
            self._was_late = self._pump.is_late
            self._pump.encoder_down(self.process)
        super()._on_change()
        self._is_settled.set()

    def _is_own_fault(self) -> bool:
        return not self._was_late

    def _start_next(self) -> None:
        if not self._was_late:
            self._stability.note_restart(time.monotonic())
        self._pump.wake()  # who waits may have to be refused now
        super()._start_next()

    def stop(self, timeout: float = 0.0) -> None:
        """Ends the process for good. Waits for its end, which comes at once."""
        super().stop(timeout)
        self._is_settled.set()
