"""The end of the server, as the kernel tells of it: heard also where user code keeps the interpreter to itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal


def hang_on(fd: int) -> None:
    """Has the kernel kill the process and its group once nobody holds the other end of this pipe.

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
