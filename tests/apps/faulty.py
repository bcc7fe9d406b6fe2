"""Handlers that go wrong in every way, and write down each call that they begin: one line in the file MARKS."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from corosrv.worker import App, Context, InvalidInput, ModelInferRequest, TensorSpec

MARKS = os.environ.get("MARKS", "")

app = App("faulty")

NAME = TensorSpec("name", "BYTES", [1])
OPTIONS: dict[str, Any] = {"inputs": [NAME], "outputs": [NAME]}


def begin(request: ModelInferRequest) -> dict[str, Any]:
    """Writes down that this call has begun, and returns its answer."""
    name: bytes = request["name"].data[0]
    if MARKS:
        file = os.open(MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, name + b"\n")
        os.close(file)
    return {"name": [name]}


@app.model("echo", **OPTIONS, concurrency=4, max_queue=100)
def echo(request: ModelInferRequest) -> dict[str, Any]:
    return begin(request)


@app.model("again", **OPTIONS, concurrency=4, idempotent=True)
def again(request: ModelInferRequest) -> dict[str, Any]:
    """May be run twice, and says so."""
    return begin(request)


@app.model("batch", **OPTIONS, batch={"max_size": 8, "max_delay_ms": 5})
def batch(requests: list[ModelInferRequest]) -> list[dict[str, Any] | Exception]:
    """Refuses what ends in 7, alone."""
    answers = [begin(request) for request in requests]
    return [InvalidInput("a seven") if answer["name"][0].endswith(b"7") else answer for answer in answers]


@app.model("nap", **OPTIONS, concurrency=8)
async def nap(request: ModelInferRequest) -> dict[str, Any]:
    answer = begin(request)
    await asyncio.sleep(0.05)
    return answer


@app.model("pieces", **OPTIONS, unary="last", concurrency=4)
def pieces(request: ModelInferRequest, context: Context) -> Iterator[dict[str, Any]]:
    answer = begin(request)
    for _ in range(5):
        yield answer
        context.sleep(0.01)


@app.model("fail", **OPTIONS)
def fail(request: ModelInferRequest) -> dict[str, Any]:
    begin(request)
    raise RuntimeError("secret words")


@app.model("garbage", **OPTIONS)
def garbage(request: ModelInferRequest) -> Any:
    begin(request)
    return {"other": object()}


@app.model("hang", **OPTIONS)
def hang(request: ModelInferRequest) -> dict[str, Any]:
    """Ignores its cancel and its deadline for a while."""
    answer = begin(request)
    time.sleep(0.4)
    return answer


@app.model("stuck", **OPTIONS)
def stuck(request: ModelInferRequest) -> dict[str, Any]:
    """Ignores its cancel and its deadline until its process is replaced."""
    answer = begin(request)
    time.sleep(60)
    return answer


@app.model("exit", **OPTIONS)
def leave(request: ModelInferRequest) -> dict[str, Any]:
    begin(request)
    os._exit(3)


@app.model("kill", **OPTIONS)
def kill(request: ModelInferRequest) -> dict[str, Any]:
    answer = begin(request)
    os.kill(os.getpid(), signal.SIGKILL)
    return answer
