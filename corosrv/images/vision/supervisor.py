"""Keeps an encoder process running: starts it, and another in place of one that died.

Images that a process died of are remembered and at last refused. From the restarts it decides whether the encoder is
worth waiting for.
"""

from __future__ import annotations

import logging
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
from corosrv.workers.dispatch.estimates import Backoff
from corosrv.workers.worker.parent.process import Restarts

log = logging.getLogger("corosrv.vision")

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
        """Records that the process serves."""
        self._serves_since = now

    def note_death(self) -> None:
        """Records that the process has ended."""
        self._serves_since = math.inf

    def is_unstable(self, now: float) -> bool:
        """Returns whether there were too many restarts, and none has served for long enough since."""
        if now - self._serves_since >= RECOVERY:
            self._is_unstable = False
        return self._is_unstable


FIRST_PAUSE = 0.5  # seconds before a process follows one that died; doubled as long as none lives long
LONGEST_PAUSE = 30.0
LONG_LIFE = 60.0  # seconds after which a death counts as the first again


class EncoderSupervisor:
    """Owns the process at hand, and counts the epochs. Belongs to the thread of one hub.

    A first process that cannot serve is not replaced: it would fail again. All others are.
    """

    def __init__(
        self, command: EncoderCommand, pool: SharedPool, pump: TransferPump, on_crash: Callable[[str | None], None]
    ) -> None:
        """Calls `on_crash` before transfers are told that a process was reaped.

        It gets the SHA-256 of the image that was being encoded, or None, and must not wait.
        """
        self._command = command
        self._pool = pool
        self._pump = pump
        self._on_crash = on_crash
        self._stability = StabilityRecord()
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, LONG_LIFE)
        self._restarts = Restarts(self._start_next, backoff, log, "the encoder process")
        self._is_settled = Event()  # the first process serves, or never will
        self._is_stopped = False
        self._was_late = False  # the last process that ended was killed for an image that took too long
        self._link = self._make_link(1)

    def _make_link(self, epoch: int) -> EncoderLink:
        return EncoderLink(self._command, self._pool, epoch, self._pump.deliver, self._on_change)

    @property
    def n_restarts(self) -> int:
        return self._restarts.count

    @property
    def pid(self) -> int | None:
        return self._link.pid

    @property
    def is_unstable(self) -> bool:
        """Returns whether there were three restarts within a minute, and no process has served for a minute since."""
        return self._stability.is_unstable(time.monotonic())

    def start(self) -> None:
        """Starts the first process; waits until it serves. Raises LoadError where it cannot, and ShuttingDown."""
        self._link.start()
        self._is_settled.wait()  # this ends: the link kills a process that is not ready in time
        if self._is_stopped:
            raise ShuttingDown("the model is being unloaded")
        if self._link.state is not WorkerState.READY:
            raise LoadError(self._link.reason)

    def _on_change(self, link: EncoderLink) -> None:
        log.info("encoder %d is %s%s", link.epoch, link.state.value, link.reason and f": {link.reason}")
        if link.state is WorkerState.READY:
            self._restarts.note_ready()
            self._stability.note_ready(time.monotonic())
            self._pump.encoder_up(link)
        else:
            self._on_end(link)
        self._is_settled.set()

    def _on_end(self, link: EncoderLink) -> None:
        self._stability.note_death()
        self._on_crash(self._pump.current_image)
        self._was_late = self._pump.is_late
        self._pump.encoder_down(link)
        has_served = self._is_settled.is_set()
        if has_served and not self._is_stopped:
            self._restarts.note_death(is_own_fault=not self._was_late)

    def _start_next(self) -> None:
        if not self._was_late:
            self._stability.note_restart(time.monotonic())
        self._link = self._make_link(self._link.epoch + 1)
        self._pump.wake()  # who waits may have to be refused now
        self._link.start()

    def stop(self) -> None:
        """Ends the process for good. Waits for its end, which comes at once."""
        self._is_stopped = True
        self._restarts.give_up()
        self._link.stop()
        self._is_settled.set()
