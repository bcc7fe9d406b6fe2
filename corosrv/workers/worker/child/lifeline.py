"""Ties a worker to its server, and its forked copies to itself, by means of the kernel.

The lifeline is a pipe: `hang_on` has the kernel kill the worker when the server ends, also where user code keeps the
interpreter to itself. `Fork` recognises copies of the worker that user code forks: none of them may go on as a second
worker when user code comes back. `lower_priority` is for encoders: decoding computes a token for every stream, while an
image has seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import traceback
from pathlib import Path


def hang_on(fd: int) -> None:
    """Asks the kernel to kill the process and its group once nobody holds the other end of this pipe.

    The control thread ends the process as well, but only when the interpreter gives it a turn, which a long call in C
    may never do. The kernel needs nobody's help, and unlike the parent-death signal it does not mind which thread of
    the server started the worker. Nothing is ever written to the pipe, so its end is the only event.
    """
    os.set_inheritable(fd, False)
    # Only a group of our own: whoever started us by hand may be in another.
    whom = -os.getpid() if os.getpgrp() == os.getpid() else os.getpid()
    with contextlib.suppress(OSError):  # a kernel that has no such signals; then the thread is all there is
        fcntl.fcntl(fd, fcntl.F_SETOWN, whom)
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


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


class Fork:
    """Tells the worker's own process from forked copies of it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def leave(self, error: BaseException | None = None) -> None:
        """Ends this process if it is a forked copy; does nothing in the worker.

        Called wherever user code returns. `error` is how it did: it decides the exit code, as it would in a script.
        """
        if os.getpid() != self._pid:
            os._exit(_exit_code(error))


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    traceback.print_exception(error)
    return 1
