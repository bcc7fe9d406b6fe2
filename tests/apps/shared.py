"""Handlers of one replica, which others call through their own server."""

from __future__ import annotations

from typing import Any

from corosrv.worker import App, ModelInferRequest, NotFound, TensorSpec, Unavailable

app = App("shared")

N = TensorSpec("n", "INT32", [-1])


@app.model("add", inputs=[TensorSpec("a", "INT32", [-1]), TensorSpec("b", "INT32", [-1])], outputs=[N])
def add(request: ModelInferRequest) -> dict[str, Any]:
    return {"n": [a + b for a, b in zip(request["a"].data, request["b"].data, strict=True)]}


@app.model("versioned", version="2", inputs=[N], outputs=[N])
def pass_on(request: ModelInferRequest) -> dict[str, Any]:
    return {"n": request["n"].data}


@app.capability(type="double", size=8, inputs=[N], outputs=[N])
def double(request: ModelInferRequest) -> dict[str, Any]:
    return {"n": [2 * number for number in request["n"].data]}


@app.model("loses", inputs=[N])
def lose(request: ModelInferRequest) -> dict[str, Any]:
    raise NotFound("there is no such thing")


@app.model("sleeps", inputs=[N])
def sleep(request: ModelInferRequest) -> dict[str, Any]:
    raise Unavailable("not before noon")
