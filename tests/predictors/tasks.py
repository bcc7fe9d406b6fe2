"""A predictor that does as its input says."""

from __future__ import annotations

import os
import time
from typing import Any

from corosrv.worker import BasePredictor, Input, Path, Secret, current_scope


class Predictor(BasePredictor):
    """Echoes, prints, waits for a file, fails or dies."""

    def setup(self) -> None:
        print("ready to serve")
        self.n_runs = 0

    def predict(
        self,
        text: str = "hello",
        prints: str = "",
        gate: str = "",
        fails: bool = False,
        exits: int = Input(default=-1, le=255),
        file: Path = Input(default=None),
        key: Secret = Input(default="none"),
    ) -> Any:
        self.n_runs += 1
        if prints:
            print(prints)
        self.record_metric("runs.total", self.n_runs)
        while gate and not os.path.exists(gate):
            time.sleep(0.005)
        if exits >= 0:
            os._exit(exits)
        if fails:
            raise ValueError(f"no {text}")
        if text == "context":
            return dict(current_scope().context)
        if text == "file":
            return file.read_text()
        return None if text == "nothing" else text

    def healthcheck(self) -> bool:
        return not os.path.exists(os.environ.get("SICK", "/nowhere"))
