"""Divides the processors between the decode loop and the encoder process, where there are not enough for both."""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from corosrv.base.errors import CorosrvError


class HasSteps(Protocol):
    """Stands for an engine, which computes a step at a time."""

    def set_side_process(self, pidfd: int, share: float, itl_s: float, usual_s: float) -> None:
        """Stops this process during steps, and continues it for a while after each; -1: none."""

    def side_process_held(self) -> float:
        """Returns the seconds for which such processes were stopped."""


class EncoderTurns:
    """Has an encoder process stand still during steps while it encodes. Belongs to the thread of one hub."""

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
