"""Handlers that are soon overloaded, kill their process or call each other, for tests.load.overload."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from corosrv.worker import App, Context, ModelInferRequest, Tensor, TensorSpec

SERVICE = 0.1  # seconds of one call
SHARED_SERVICE = 0.05
TURN = 0.2  # seconds for which a handler of a circle runs before it calls the next
Answer = dict[str, Any]

app = App("overload")


@app.model("bounded", max_queue=20)
def work(request: ModelInferRequest) -> Answer:
    """Takes its time, and hears of no cancel meanwhile."""
    time.sleep(SERVICE)
    return {}


@app.model("timely", max_queue=1000)
def work_in_time(request: ModelInferRequest) -> Answer:
    return work(request)


@app.model("shared", concurrency=4)
def work_for_all(request: ModelInferRequest) -> Answer:
    time.sleep(SHARED_SERVICE)
    return {}


@app.model("plain", concurrency=4, max_queue=1000)
def plain(request: ModelInferRequest) -> Answer:
    return {}


@app.model("kill")
def kill(request: ModelInferRequest) -> Answer:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def make_visitor() -> Callable[[ModelInferRequest, Context], Answer]:
    """Returns a function of its own: all names of one function share its permits."""

    def visit(request: ModelInferRequest, context: Context) -> Answer:
        """Calls the first handler of a path with the rest of it."""
        if path := list(request["path"].data):
            time.sleep(TURN)
            rest = Tensor("path", "BYTES", [len(path) - 1], data=path[1:])
            context.call(model=path[0].decode(), inputs={"path": rest})
        return {}

    return visit


for name in "abc":
    app.model(name, inputs=[TensorSpec("path", "BYTES", [-1])])(make_visitor())
