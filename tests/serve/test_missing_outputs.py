"""What clients of both fronts get from a handler that leaves out an output which it declares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from corosrv.dialects.kserve.grpc import protocol
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import Server, Servers
from tests.support.waiting import eventually

APP = str(Path(__file__).parent.parent / "apps" / "plain.py") + ":app"
FAULT = "the handler of 'forgetful' gave no output 'forgotten', which it declares"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Servers(tmp_path_factory.mktemp("outputs"), tmp_path_factory.mktemp("outputs-cache"))
    try:
        yield started.start(COROSRV_MODEL="", worker_app=APP, grpc_port=0)
    finally:
        started.stop()


@pytest.mark.parametrize("asked", [{}, {"outputs": [{"name": "forgotten"}]}])
def test_a_missing_output_is_the_handlers_fault_over_rest(server: Server, asked: dict[str, object]) -> None:
    with server.connect() as client:
        answer = client.post({"inputs": [], **asked}, "/v2/models/forgetful/infer")

    assert (answer.status, answer.json) == (500, {"error": FAULT})


def test_a_missing_output_is_the_handlers_fault_over_grpc(server: Server) -> None:
    port = int(eventually(lambda: re.findall(r"gRPC listens on 127\.0\.0\.1, port (\d+)", server.log))[-1])

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/{protocol.SERVICE}/ModelInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelInferResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as failed:
            call(infer_request("forgetful"), timeout=20, wait_for_ready=True)

    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.INTERNAL, FAULT)
