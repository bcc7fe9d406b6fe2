"""Handlers that do next to nothing, for tests and measurements of everything around them."""

from __future__ import annotations

import os
import time
from typing import Any

from corosrv.worker import App, Context, ModelInferRequest, ModelInferResponse, Tensor, TensorSpec

app = App("plain")


@app.model("echo", concurrency=8)
def echo(request: ModelInferRequest) -> ModelInferResponse:
    """Gives back its inputs."""
    return ModelInferResponse(request.inputs)


@app.model("aecho", concurrency=64)
async def aecho(request: ModelInferRequest) -> ModelInferResponse:
    """Gives back its inputs, from an event loop."""
    return ModelInferResponse(request.inputs)


@app.model(
    "sleep",
    inputs=[TensorSpec("seconds", "FP64", [1]), TensorSpec("data", "UINT8", [-1], optional=True)],
    outputs=[TensorSpec("pid", "INT64", [1])],
    max_queue=100_000,
)
def sleep(request: ModelInferRequest, context: Context) -> dict[str, Any]:
    """Waits, and says in which process it did."""
    context.sleep(request["seconds"].data[0])
    return {"pid": [os.getpid()]}


@app.model("hang", outputs=[TensorSpec("pid", "INT64", [1])])
def hang(request: ModelInferRequest) -> dict[str, Any]:
    """Waits for a minute, whatever it is told."""
    time.sleep(60)
    return {"pid": [os.getpid()]}


@app.model("exit")
def leave(request: ModelInferRequest) -> ModelInferResponse:
    """Ends its process."""
    os._exit(3)


@app.model("size", inputs=[TensorSpec("data", "UINT8", [-1])], outputs=[TensorSpec("size", "INT64", [1])])
def size(request: ModelInferRequest) -> ModelInferResponse:
    """Says how many bytes came."""
    return ModelInferResponse([Tensor("size", "INT64", [1], data=[request["data"].n_bytes])])


@app.model("forgetful", outputs=[TensorSpec("given", "INT32", [1]), TensorSpec("forgotten", "INT32", [1])])
def forget(request: ModelInferRequest) -> dict[str, Any]:
    """Leaves out one of the outputs that it declares."""
    return {"given": [1]}
