"""Measures what a piece of work takes of a processor, where a test asks that it is not far too much."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def least_seconds(work: Callable[[], object], enough: float, n_looks: int = 3) -> float:
    """Runs the work up to so many times, until it takes less than `enough`; gives the shortest seconds of this thread.

    Other programs on the same processors stretch the processor time of a thread too, and the garbage collector, which
    does not run meanwhile, looks through all that earlier tests left in the process: neither says anything of the work.
    """
    least = float("inf")
    for _ in range(n_looks):
        gc.disable()
        try:
            began = time.thread_time()
            work()
            least = min(least, time.thread_time() - began)
        finally:
            gc.enable()
        if least < enough:
            break
    return least
