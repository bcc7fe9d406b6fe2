"""A predictor whose outputs can be followed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from corosrv.worker import BasePredictor, streaming


class Predictor(BasePredictor):
    """Counts, and waits for a file behind the first number."""

    @streaming
    def run(self, n: int = 3, gate: str = "", fails: bool = False, seconds: float = 0.0) -> Iterator[str]:
        print("counting")
        began = 0.0
        for number in range(n):
            yield f"number {number}"
            while gate and not os.path.exists(gate):
                time.sleep(0.005)
            began = began or time.monotonic()  # nobody waits any more
            time.sleep(seconds)
        self.record_metric("numbers", n, mode="incr")
        if seconds:
            self.record_metric("seconds", time.monotonic() - began)
        if fails:
            raise ValueError("miscounted")
