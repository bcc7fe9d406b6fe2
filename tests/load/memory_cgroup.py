"""A memory cgroup below this process's own, of version 2 or 1, for programs that are to have so much and no more."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corosrv.models.fitting.room import cgroup_folders

_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of version 2, and 1
_PEAKS = ("memory.peak", "memory.max_usage_in_bytes")
_REMOVAL_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A cgroup with a limit."""

    folder: Path

    def join(self) -> None:
        """Moves the calling process into the cgroup."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak(self) -> int:
        """The most bytes that were in use at once, pages of files among them; 0 where the kernel does not count it."""
        texts = [(self.folder / name).read_text() for name in _PEAKS if (self.folder / name).exists()]
        return int(texts[0]) if texts else 0

    @property
    def n_killed(self) -> int:
        """Processes that the kernel ended for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                words = (self.folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
        return 0


@contextlib.contextmanager
def limited_to(limit: int) -> Iterator[MemoryCgroup]:
    """Makes a cgroup of so many bytes; removes it when its processes have ended. Raises OSError where it may not."""
    parent = next(cgroup_folders(Path("/proc/self/cgroup").read_text()), None)
    if parent is None:
        raise FileNotFoundError("this process is in no memory cgroup")
    folder = parent / f"corosrv-{os.getpid()}"
    folder.mkdir()
    try:
        name = next((name for name in _LIMITS if (folder / name).exists()), None)
        if name is None:
            raise FileNotFoundError(f"{parent} hands no memory controller to those below it")
        (folder / name).write_text(str(limit))
        yield MemoryCgroup(folder)
    finally:
        _remove(folder, time.monotonic() + _REMOVAL_TIMEOUT)


def _remove(folder: Path, deadline: float) -> None:
    while True:
        try:
            return folder.rmdir()
        except OSError:  # a process is still ending
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
