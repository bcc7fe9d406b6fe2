"""Lets others have the processor first: decoding computes a token for every stream, while an image has seconds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_OWN_GROUP = Path("/proc/self/autogroup")  # where the kernel gives each session the same share of the processor
_LOWEST = 19


def lower_priority(nice: int) -> None:
    """Adds `nice` to the nice value of the calling thread and of those that it starts from now on.

    Takes care that it also counts against processes of other sessions. What the kernel does not offer is left out.
    """
    value = min(os.nice(nice), _LOWEST)
    with contextlib.suppress(OSError):  # refused in some sandboxes
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # waking up, it waits for the others' turn to end
    if os.getsid(0) == os.getpid():  # else the group is also somebody else's
        with contextlib.suppress(OSError):
            _OWN_GROUP.write_text(str(value))
