"""A program that uses the KServe SDK's client over gRPC, in the environment of clients that cannot share the tests'.

It prints what came of each of its steps, as JSON. Its argument is the port.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy
from grpc.aio import AioRpcError
from kserve import InferenceGRPCClient, InferInput, InferRequest


def request(model: str, *tensors: InferInput, **options: Any) -> InferRequest:
    return InferRequest(model_name=model, infer_inputs=list(tensors), **options)


async def main(port: str) -> dict[str, Any]:
    client = InferenceGRPCClient(f"127.0.0.1:{port}", timeout=10)
    outcome: dict[str, Any] = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model": await client.is_model_ready("echo"),
        "unready": await client.is_model_ready("hang"),
    }
    raw = InferInput("x", [2, 2], "FP32")
    raw.set_data_from_numpy(numpy.array([[1, 2], [3, 4]], dtype=numpy.float32), binary_data=True)
    typed = InferInput("n", [2], "INT64", data=[7, -(2**63)])
    for name, tensor in (("raw", raw), ("typed", typed)):
        answer = await client.infer(request("echo", tensor, request_id=name, parameters={"flag": True, "n": 3}))
        outcome[name] = [answer.id, answer.model_name, answer.outputs[0].as_numpy().tolist(), answer.parameters]
    for how in ("refused", "full", "lost"):
        try:
            await client.infer(request("fail", parameters={"how": how}))
        except AioRpcError as error:
            outcome[how] = error.code().name
    started = time.monotonic()
    try:
        await client.infer(request("fail", parameters={"how": "unavailable"}))
    except AioRpcError as error:
        outcome["unavailable"] = [error.code().name, time.monotonic() - started]
    await client.close()
    return outcome


print(json.dumps(asyncio.run(main(sys.argv[1])), default=str))
