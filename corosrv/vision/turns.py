"""Divides the processors between the decode loop and the encoder process, where there are not enough for both."""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from corosrv.errors import CorosrvError


class HasSteps(Protocol):
    """Stands for an engine, which computes a step at a time."""

    def set_side_process(self, pidfd: int, share: float) -> None:
        """Stops this process during steps, and continues it after each for `share` of the step's time; -1: none."""


class EncoderTurns:
    """Has an encoder process stand still during steps while it encodes. Belongs to the thread of one hub."""

    def __init__(self, engine: HasSteps, share: float) -> None:
        """`share`: the encoder's time after each step, as a part of the step's; 0: the kernel divides the time."""
        self._engine = engine
        self._share = share
        self._pid: int | None = None

    def set_encoding(self, pid: int | None) -> None:
        """Takes note of the process that encodes from now on; None: no process does. Never waits."""
        if pid == self._pid or self._share <= 0:
            return
        self._pid = pid
        # A process that has just ended and an engine that is being closed need no turns.
        with contextlib.suppress(CorosrvError, OSError):
            if pid is None:
                self._engine.set_side_process(-1, self._share)
                return
            pidfd = os.pidfd_open(pid)
            try:
                self._engine.set_side_process(pidfd, self._share)
            finally:
                os.close(pidfd)
