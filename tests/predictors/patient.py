"""A predictor for tests of the server's end: waits in every way, and can be waited for."""

from __future__ import annotations

import asyncio
import os
import time

from corosrv.worker import BasePredictor, CancelationException, concurrent


class Predictor(BasePredictor):
    """Waits for a file; with `stubborn` also when it is to stop."""

    def run(self, gate: str, stubborn: bool = False) -> str:
        print("waiting")
        while not os.path.exists(gate):
            try:
                time.sleep(0.005)
            except CancelationException:
                if not stubborn:
                    raise
        return "done"


class AsyncPredictor(BasePredictor):
    """The same for several at once."""

    @concurrent(max=4)
    async def run(self, gate: str) -> str:
        print("waiting")
        while not os.path.exists(gate):
            await asyncio.sleep(0.005)
        return "done"


class SlowToSetUp(BasePredictor):
    """Is never set up."""

    def setup(self) -> None:
        print("setting up", flush=True)
        while True:
            time.sleep(0.05)

    def run(self) -> None:
        """Is never called."""
