"""Runs a transfer core: hands it the time and the encoder's messages, and sends what it wants to say.

An encode is late, or stands still, by the time in which the encoder process could run (`EncodeClock`), not by the wall
clock.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gevent
from gevent.event import Event

from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs import Image
from corosrv.images.transfer import messages
from corosrv.images.transfer.core import TransferCore
from corosrv.images.vision.link import EncoderLink
from corosrv.images.vision.turns import EncodeOrder, EncoderTurns, ImageSizes, Size
from corosrv.workers.wire import descriptors

log = logging.getLogger("corosrv.vision")

WORKS = 0.02  # processor time for the time in which a process could run; one with less does not get on


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds for which a thread computed, and for which it could have, but had no processor."""

    computed: float
    starved: float


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Holds how long a process had run, waited and been held by a moment, in seconds."""

    at: float  # of time.monotonic()
    held: float  # for which the decode loop kept such processes stopped, see EncoderTurns
    threads: Mapping[int, ThreadTimes]  # empty where the kernel does not tell


def read_threads(pid: int) -> dict[int, ThreadTimes]:
    """Asks the kernel for the times of a process. Takes some ten microseconds for each thread."""
    try:
        return {int(thread.name): _read_thread(thread) for thread in Path(f"/proc/{pid}/task").iterdir()}
    except (OSError, ValueError):  # it has just ended, or the kernel keeps no such statistics
        return {}


def _read_thread(thread: Path) -> ThreadTimes:
    computed, starved, _ = (thread / "schedstat").read_text().split()
    return ThreadTimes(int(computed) / 1e9, int(starved) / 1e9)


class EncodeClock:
    """Counts seconds in which one process could run: it was neither held nor without a processor."""

    def __init__(self, reading: ProcessReading) -> None:
        self.now = 0.0
        self._reading = reading
        self._worked_at = 0.0

    def advance(self, reading: ProcessReading) -> float:
        """Moves on to a later reading of the same process, and returns the time."""
        last, self._reading = self._reading, reading
        computed, starved = 0.0, 0.0
        for thread, times in reading.threads.items():
            before = last.threads.get(thread, ThreadTimes(0.0, 0.0))
            computed += times.computed - before.computed
            starved = max(starved, times.starved - before.starved)
        could_run = max(0.0, reading.at - last.at - (reading.held - last.held) - starved)
        self.now += could_run
        if not reading.threads or computed >= WORKS * could_run:
            self._worked_at = self.now
        return self.now

    def begin_encode(self) -> None:
        """Notes that there is something to do from now on: a process that had nothing to do did not stand still."""
        self._worked_at = self.now

    @property
    def idle(self) -> float:
        """The time for which the process has not worked."""
        return self.now - self._worked_at


MOST_MESSAGES = 64  # between two ticks
_SHORTEST_WAIT = 0.001  # seconds
_LARGE = 1 << 20  # bytes of pixels that are copied in a thread of their own
_LOOK = 1.0  # seconds between two looks at a process that encodes
_STANDSTILL = 10.0  # seconds in which a process could have worked on an image, and has not
_NEW_WEIGHT = 0.3  # of the last encode, in what is usual


class TransferPump:
    """Owns the greenlet that moves a core on. Belongs to the thread of one hub.

    `on_step` is called after each step, when transfers may have ended. `find_image` returns the image of a transfer by
    its rid, None once nobody wants it. `on_late` is told the rid of one whose process is killed because its encode took
    too long, or, if the flag is set, stands still. `turns` are told after each step what is encoded. None of them may
    wait.
    """

    def __init__(
        self,
        core: TransferCore,
        find_image: Callable[[int], Image | None],
        on_step: Callable[[], None],
        encode_limit: float,
        on_late: Callable[[int, bool], None] = lambda rid, is_still: None,
        turns: EncoderTurns | None = None,
    ) -> None:
        """`encode_limit`: seconds for which the encoder may run for one image before it is killed."""
        self.core = core
        self.sizes = ImageSizes(self._ask_for_size)
        self.n_kills = 0  # for an encode that did not end
        self.is_late = False  # the encoder was killed for that, and was not reaped yet
        self._find_image = find_image
        self._on_step = on_step
        self._on_late = on_late
        self._turns = turns
        self._order = EncodeOrder(encode_limit)
        self._standstill = min(_STANDSTILL, encode_limit / 2)
        self._usual = 0.0  # seconds of an encode; 0: none has ended yet
        self._link: EncoderLink | None = None  # of the encoder that is up
        self._clock = EncodeClock(self._read(None))
        self._is_killed = False  # that encoder was, and its end is near
        self._wakeup = Event()
        self._n_delivered = 0  # since the last tick
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """Begins to work; returns at once."""
        self.set_time()
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """Ends the greenlet; returns at once."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def set_time(self) -> float:
        """Tells the core the time, as is due before each call of it, and returns it."""
        now = time.monotonic()
        self.core.set_time(now)
        return now

    def wake(self) -> None:
        """Wakes the greenlet for a step, because the core has a new input."""
        self._wakeup.set()

    # The encoder.

    def encoder_up(self, link: EncoderLink) -> None:
        """Takes note of an encoder that is ready."""
        self.set_time()
        self._link = link
        self._clock = EncodeClock(self._read(link))
        self._is_killed = False
        self.core.encoder_up(link.epoch)
        self.wake()

    @property
    def current_image(self) -> str | None:
        """The SHA-256 of the image that is being encoded; None while there is none, or the server ends the process."""
        return None if self._is_killed else self._order.current

    def encoder_down(self, link: EncoderLink) -> None:
        """Takes note that an encoder was reaped, which may never have been up."""
        self.set_time()
        self._link = None
        self.is_late = False
        self._order.clear()
        self.core.encoder_down(link.epoch)
        self.sizes.encoder_down()
        self.wake()

    def deliver(self, message: messages.ToLanguage) -> None:
        """Takes a message of the encoder. Never waits."""
        self.set_time()
        if isinstance(message, (messages.TransferMeta, messages.EncodeFailed)) and self._link is not None:
            self._end_encode(message)
        if isinstance(message, messages.ImageMeasured):
            self.sizes.answer((message.width, message.height), message.n_tokens)
        elif not isinstance(message, messages.Hello):
            self.core.deliver(message)
        self._n_delivered += 1
        if self._n_delivered >= MOST_MESSAGES:
            self._tick()
        self.wake()

    def _end_encode(self, message: messages.TransferMeta | messages.EncodeFailed) -> None:
        took = self._order.report(message.tid, self._look())
        self._clock.begin_encode()
        if isinstance(message, messages.TransferMeta) and took > 0:
            self._usual += (took - self._usual) * (_NEW_WEIGHT if self._usual else 1)

    def _ask_for_size(self, size: Size) -> bool:
        if self._link is None or self._is_killed:
            return False
        if not self._is_awaited:
            self._look()
            self._clock.begin_encode()
        self._link.send(messages.MeasureImage(self._link.epoch, *size))
        self.wake()
        return True

    # The time of the encoder.

    def _read(self, link: EncoderLink | None) -> ProcessReading:
        pid = None if link is None else link.pid
        held = 0.0 if self._turns is None else self._turns.held_seconds()
        return ProcessReading(time.monotonic(), held, {} if pid is None else read_threads(pid))

    def _look(self) -> float:
        """Returns for how long the encoder at hand could run since it is up."""
        return self._clock.advance(self._read(self._link))

    @property
    def encode_due_at(self) -> float:
        """Returns when the encode at hand has taken too long, by that time; infinity while nothing is waited for."""
        return math.inf if self._is_killed else self._order.due_at

    @property
    def _is_awaited(self) -> bool:
        """Returns whether anybody waits for the encoder at hand."""
        return self.encode_due_at < math.inf or (self.sizes.is_asked and not self._is_killed)

    def _end_late(self) -> None:
        """Kills an encoder whose encode takes too long, or stands still."""
        if not self._is_awaited:
            return
        is_over = self._look() >= self.encode_due_at
        is_still = self._clock.idle >= self._standstill
        if not (is_over or is_still):
            return
        self.n_kills += 1
        self.is_late = True
        overdue = self._order.overdue
        rid = None if overdue is None else self.core.rid_of(overdue)
        self._kill("its encode stands still" if is_still else "it did not end an encode in time")
        if rid is not None:
            self._on_late(rid, is_still)

    # The greenlet.

    def _run(self) -> None:
        while True:
            self._wakeup.wait(self._patience())
            self._wakeup.clear()
            try:
                self._step()
            except Exception:  # a bug: the images at hand are lost, and others must not be
                log.exception("a step of the transfers failed")
                self._kill("the server could not go on with its transfers")

    def _patience(self) -> float | None:
        """Returns for how many seconds nothing has to be done, unless something happens; None: for ever."""
        seconds = self.core.next_deadline() - self.set_time()
        if self._is_awaited:
            seconds = min(seconds, self.encode_due_at - self._clock.now, self._standstill / 4, _LOOK)
        return max(seconds, _SHORTEST_WAIT) if seconds < math.inf else None

    def _step(self) -> None:
        self._tick()
        self._send_outbox()
        self._on_step()
        link = self._link
        if self._turns is not None:
            pid = link.pid if link is not None and self._order.tid else None
            self._turns.set_encoding(pid, self._order.tid, self._usual)
        if link is not None and self.core.kill_wanted == link.epoch:
            self._kill("it did not answer a cancellation")
        self._end_late()

    def _tick(self) -> None:
        self._n_delivered = 0
        self.set_time()
        self.core.tick()

    def _kill(self, fault: str) -> None:
        if self._link is not None and not self._is_killed:
            self._is_killed = True
            self._link.kill(fault)

    def _send_outbox(self) -> None:
        """Sends what the core wants to say, in its order. Waits while the pixels of a large image are copied."""
        while self._link is not None and self.core.outbox:
            link, message = self._link, self.core.outbox.pop(0)
            if isinstance(message, messages.OpenTransfer):
                self._send_image(link, message)
                continue
            if isinstance(message, messages.CancelTransfer):
                self._order.cancel(message.tid, self._look())
            link.send(message)

    def _send_image(self, link: EncoderLink, message: messages.OpenTransfer) -> None:
        rid = self.core.rid_of(message.tid)
        image = None if rid is None else self._find_image(rid)
        if image is None:
            return  # cancelled meanwhile: the encoder ignores the cancellation of what it does not know
        fd = self._copy_pixels(image)
        try:
            # Another encoder may have come meanwhile, for which the transfer would be unknown.
            if link is self._link:
                now = self._look()
                if self._order.current is None:
                    self._clock.begin_encode()
                self._order.open(message.tid, image.sha256, now)
                link.send(message, [fd] if fd >= 0 else ())
        finally:
            if fd >= 0:
                os.close(fd)

    def _copy_pixels(self, image: Image) -> int:
        """Returns a memory file; -1 where none can be made, so that the encoder reports the image as unreadable."""
        try:
            if len(image.pixels) >= _LARGE:
                return call_in_thread(descriptors.make, (image.pixels,))
            return descriptors.make((image.pixels,))
        except OSError as error:
            log.error("the pixels of an image cannot be handed to the encoder: %s", error)
            return -1
