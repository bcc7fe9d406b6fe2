"""A program that uses the KServe SDK's client over REST, in the environment of clients that cannot share the tests'.

It prints what came of each of its steps, as JSON. Its argument is the server's address.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
import numpy
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


def tensor(name: str, datatype: str, array: Any, *, is_binary: bool) -> InferInput:
    built = InferInput(name, list(array.shape), datatype)
    built.set_data_from_numpy(array, binary_data=is_binary)
    return built


def request(*tensors: InferInput, **options: Any) -> InferRequest:
    return InferRequest(model_name="echo", infer_inputs=list(tensors), **options)


async def main(url: str) -> dict[str, Any]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=10))
    outcome: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "echo"),
        "unready": await client.is_model_ready(url, "loading"),
    }
    array = numpy.array([[1, 2], [3, 4]], dtype=numpy.float32)
    texts = numpy.array([b"a", "grüße".encode()], dtype=object)
    for name, is_binary in (("binary", True), ("json", False)):
        call = request(
            tensor("x", "FP32", array, is_binary=is_binary),
            tensor("t", "BYTES", texts, is_binary=is_binary),
            request_id=name,
            parameters={"flag": True, "n": 3, "binary_data_output": is_binary},
        )
        answer = await client.infer(url, call, model_name="echo")
        outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs}
        outcome[name] = [answer.id, answer.model_name, outputs, answer.parameters]
    half = tensor("h", "FP16", numpy.array([1.5, 2.5], dtype=numpy.float16), is_binary=True)
    wanted = [RequestedOutput("h", parameters={"binary_data": True})]
    answer = await client.infer(url, request(half, request_outputs=wanted), model_name="echo")
    outcome["half"] = answer.outputs[0].as_numpy().tolist()
    for name, model in (("unknown", "none"), ("refused", "add"), ("unavailable", "loading")):
        try:
            await client.infer(url, request(), model_name=model)
        except httpx.HTTPStatusError as error:
            outcome[name] = [error.response.status_code, str(error)]
    await client.close()
    return outcome


print(json.dumps(asyncio.run(main(sys.argv[1])), default=str))
