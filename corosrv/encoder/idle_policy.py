"""Has encoding run only where nothing else wants to, for as long as that leaves it some time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

LOOK = 5.0  # seconds between two looks at the time that an encode has had
LEAST = 0.01  # of a processor's time; what has less is starved
_THREADS = Path("/proc/self/task")
_BATCH = os.SCHED_BATCH, os.sched_param(0)
_IDLE = os.SCHED_IDLE, os.sched_param(0)


class IdlePolicy:
    """Sets the scheduling policy of the threads that encode: idle, so that they give way at once to any other thread.

    Beside others that want all the time, idle threads have next to none. An encode that is starved goes on as batch
    work, which the nice value alone holds back. Where this process may not leave the idle policy again, which takes a
    limit on nice values (RLIMIT_NICE) or CAP_SYS_NICE, it never enters it.
    """

    def __init__(self) -> None:
        """Tries whether the policy may be entered and left, in a thread that ends at once. Waits for it."""
        self.is_allowed = self._try()

    @contextlib.contextmanager
    def encoding(self) -> Iterator[None]:
        """Enters the idle policy for the block, in the calling thread and those that it starts; see LOOK and LEAST."""
        if not self.is_allowed:
            yield
            return
        is_over = threading.Event()
        self._set(_IDLE)
        threading.Thread(target=self._watch, args=(is_over,), name="corosrv-idle", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    @staticmethod
    def _try() -> bool:
        verdicts: list[bool] = []

        def enter_and_leave() -> None:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, *_IDLE)
                os.sched_setscheduler(0, *_BATCH)
                verdicts.append(True)

        thread = threading.Thread(target=enter_and_leave)
        thread.start()
        thread.join()
        return bool(verdicts)

    def _watch(self, is_over: threading.Event) -> None:
        began, used = time.monotonic(), time.process_time()
        while not is_over.wait(LOOK):
            if time.process_time() - used < LEAST * (time.monotonic() - began):
                return self._set(_BATCH)

    @staticmethod
    def _set(policy: tuple[int, os.sched_param]) -> None:
        """Sets the policy of all threads that encode; those of the normal policy answer the server, and stay as is."""
        for thread in _THREADS.iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if os.sched_getscheduler(int(thread.name)) != os.SCHED_OTHER:
                    os.sched_setscheduler(int(thread.name), *policy)
