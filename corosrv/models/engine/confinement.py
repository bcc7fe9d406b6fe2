"""Confines a child process that tries what strangers wrote: it ends with its server, and uses no more than it may."""

from __future__ import annotations

import ctypes
import resource
import select
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_server(status: int) -> None:
    """Asks the system to kill this process when its server ends, which does not wait for trials then.

    Exits with this status where the server has ended already. No core file is written from here on.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    output = select.poll()
    output.register(sys.stdout, 0)
    if output.poll(0):  # nobody reads it: the server has ended already
        sys.exit(status)


def limit_further_use(seconds: int, memory_bytes: int) -> None:
    """Limits the processor time and the address space that this process uses beyond what it has by now.

    It dies of SIGXCPU beyond the first, and has no more memory beyond the second.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    _limit(resource.RLIMIT_CPU, used + seconds)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + memory_bytes)


def _limit(kind: int, most: int) -> None:
    """Lowers a limit; one that is lower already stays."""
    soft, hard = resource.getrlimit(kind)
    lowest = min([most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])
    resource.setrlimit(kind, (lowest, hard))
