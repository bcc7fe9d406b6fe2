"""Functions as models: corosrv serve deploy/app/basic.py:app

curl http://127.0.0.1:8080/v2/models/add/infer -d '{"inputs": [
  {"name": "a", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]},
  {"name": "b", "datatype": "INT32", "shape": [3], "data": [10, 20, 30]}]}'
"""

from __future__ import annotations

import math
from typing import Any

from corosrv.worker import App, Context, InvalidInput, ModelInferRequest, ModelInferResponse, TensorSpec, Worker

app = App("basic")


@app.model(
    "add",
    inputs=[TensorSpec("a", "INT32", [-1]), TensorSpec("b", "INT32", [-1])],
    outputs=[TensorSpec("sum", "INT64", [-1])],
    idempotent=True,
)
def add(request: ModelInferRequest) -> dict[str, Any]:
    """Adds two lists of numbers, element by element."""
    a, b = request["a"].data, request["b"].data
    if len(a) != len(b):
        raise InvalidInput(f"a has {len(a)} elements and b has {len(b)}")
    return {"sum": [x + y for x, y in zip(a, b, strict=True)]}


LENGTH = TensorSpec("length", "FP64", [1])
POINT = TensorSpec("point", "FP64", [-1])


@app.model("norm", version="1", inputs=[POINT], outputs=[LENGTH])
def taxicab_norm(request: ModelInferRequest) -> dict[str, Any]:
    """Measures a point's distance from zero along the axes."""
    return {"length": [sum(map(abs, request["point"].data))]}


@app.model("norm", version="2", inputs=[POINT], outputs=[LENGTH])
def euclidean_norm(request: ModelInferRequest) -> dict[str, Any]:
    """Measures a point's distance from zero as the crow flies; whoever names no version gets this one."""
    return {"length": [math.hypot(*request["point"].data)]}


@app.worker(models=["counter"], max=1)
class Counter(Worker):
    """Counts its calls: a worker class keeps what it has loaded or learned, in a process of its own."""

    def on_start(self) -> None:
        self.n_calls = 0

    def handle(self, request: ModelInferRequest, context: Context) -> ModelInferResponse:
        self.n_calls += 1
        context.log.info("call %d", self.n_calls)
        response = ModelInferResponse()
        response.add_output("n_calls", "INT64", [1], data=[self.n_calls])
        return response
