"""Divides the processors between the decode loop and the encoder process, where there are not enough for both.

`EncodeOrder` follows which image the encoder is at, and for how long. `ImageSizes` knows how many tokens an image of
each size becomes, and asks the encoder once for a size that is not known.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from corosrv.base.errors import CorosrvError
from corosrv.base.recent import RecentValues
from corosrv.contracts.jobs import Image

MOST_SIZES = 4096  # that are remembered

Size = tuple[int, int]  # width and height in pixels
Wake = Callable[[], None]


class ImageSizes:
    """The tokens of each size, for which the encoder is asked once.

    Belongs to the thread of one hub; nothing of it waits.
    """

    def __init__(self, ask: Callable[[Size], bool]) -> None:
        """`ask` sends a question to the encoder, and returns False where none is up."""
        self._ask = ask
        self._known: RecentValues[Size, int] = RecentValues(MOST_SIZES)
        self._asked: dict[Size, list[Wake]] = {}

    @property
    def is_asked(self) -> bool:
        """Returns whether the encoder has a question that it has not answered."""
        return bool(self._asked)

    def n_tokens(self, image: Image, wake: Wake) -> int | None:
        """Returns how many tokens an image becomes; 0 where nobody can tell before it is encoded.

        None: the encoder was asked. `wake` is called when it has answered, or has ended.
        """
        size = image.width, image.height
        if (known := self._known.get(size)) is not None:
            return known
        if size not in self._asked:
            if not self._ask(size):
                return 0
            self._asked[size] = []
        self._asked[size].append(wake)
        return None

    def answer(self, size: Size, n_tokens: int) -> None:
        self._known.put(size, n_tokens)
        for wake in self._asked.pop(size, ()):
            wake()

    def encoder_down(self) -> None:
        """Answers all open questions with 0, unknown: the encoder that was asked has ended, perhaps because of one."""
        for size in list(self._asked):
            self.answer(size, 0)


@dataclass(slots=True)
class _Opened:
    sha256: str
    is_cancelled: bool = False


class EncodeOrder:
    """Holds the images that an encoder process was sent and has not reported on. The caller passes the time in: that
    in which the process could run, see EncodeClock.

    The process encodes them one at a time, in the order in which they were opened. It cannot interrupt an encode: one
    that was cancelled goes on, and nobody hears of its end until another is encoded.
    """

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that one image may take."""
        self._limit = limit
        self._opened: dict[int, _Opened] = {}  # by tid, which increase
        self._since = math.inf  # when the first that is not cancelled became so

    def open(self, tid: int, sha256: str, now: float) -> None:
        """Adds an image that was sent."""
        was_idle = self._first_live is None
        self._opened[tid] = _Opened(sha256)
        if was_idle:
            self._since = now

    def report(self, tid: int, now: float) -> float:
        """Removes an image that was encoded, or could not be, and all that were sent before it.

        Returns how long it took; 0 where that is not known.
        """
        if tid not in self._opened:
            return 0.0
        took = now - self._since if tid == next(iter(self._opened)) == self._first_live else 0.0
        for earlier in [other for other in self._opened if other <= tid]:
            del self._opened[earlier]
        self._since = math.inf if self._first_live is None else now
        return took

    def cancel(self, tid: int, now: float) -> None:
        """Cancels an image: the first one may be encoded at this moment, later ones never are."""
        if tid not in self._opened:
            return
        was_first = tid == self._first_live
        if tid == next(iter(self._opened)):
            self._opened[tid].is_cancelled = True
        else:
            del self._opened[tid]
        if was_first:
            self._since = math.inf if self._first_live is None else now

    def clear(self) -> None:
        """Forgets everything, for the process has ended."""
        self._opened.clear()
        self._since = math.inf

    @property
    def current(self) -> str | None:
        """The SHA-256 of the image that is being encoded, as far as can be told; None while there is none."""
        return next((image.sha256 for image in self._opened.values()), None)

    @property
    def tid(self) -> int:
        """The transfer of that image; 0 while there is none."""
        return next(iter(self._opened), 0)

    @property
    def overdue(self) -> int | None:
        """The transfer whose encode has taken too long, at its `due_at`; None where an image before it may have."""
        return self.tid if self.tid == self._first_live else None

    @property
    def due_at(self) -> float:
        """Returns when the image that is waited for has taken too long; infinity while none is.

        One that stands behind a cancelled image has the time of both.
        """
        n_encodes = 2 if len(self._opened) > 1 and next(iter(self._opened.values())).is_cancelled else 1
        return self._since + n_encodes * self._limit

    @property
    def _first_live(self) -> int | None:
        return next((tid for tid, image in self._opened.items() if not image.is_cancelled), None)


class HasSteps(Protocol):
    """Stands for an engine, which computes a step at a time."""

    def set_side_process(self, pidfd: int, share: float, itl_s: float, usual_s: float) -> None:
        """Stops this process during steps, and continues it for a while after each; -1: none."""

    def side_process_held(self) -> float:
        """Returns the seconds for which such processes were stopped."""


class EncoderTurns:
    """Stops an encoder process during the steps of a decode loop. Belongs to the thread of one hub."""

    def __init__(self, engine: HasSteps, share: float | None, itl_s: float) -> None:
        """`share`: the encoder's time after each step, as a part of the step's; 0: the kernel divides the time.

        None: as one more of the streams that run, more the longer an image waits, and none that would keep a token
        back beyond `itl_s` seconds. See native/src/loop/side_share.h.
        """
        self._engine = engine
        self._share = share
        self._itl_s = itl_s
        self._encode: tuple[int, int] | None = None

    def set_encoding(self, pid: int | None, number: int = 0, usual_s: float = 0.0) -> None:
        """Takes note of the process that encodes from now on, and of its image by number; None: no process does.

        `usual_s`: what an image usually takes when it is alone; 0 while that is not known. Never waits.
        """
        encode = None if pid is None else (pid, number)
        if encode == self._encode or self._share == 0:
            return
        self._encode = encode
        # A process that has just ended and an engine that is being closed need no turns.
        with contextlib.suppress(CorosrvError, OSError):
            if pid is None:
                self._set(-1, usual_s)
                return
            pidfd = os.pidfd_open(pid)
            try:
                self._set(pidfd, usual_s)
            finally:
                os.close(pidfd)

    def _set(self, pidfd: int, usual_s: float) -> None:
        self._engine.set_side_process(pidfd, self._share or 0.0, self._itl_s, usual_s)

    def held_seconds(self) -> float:
        """Returns the seconds for which encoders stood still during steps, those of the turn at hand included."""
        with contextlib.suppress(CorosrvError):
            return self._engine.side_process_held()
        return 0.0
