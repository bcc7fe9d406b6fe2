"""What an inference gateway says of a request: whose share it takes, and what goes before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from corosrv.dialects.kserve.grpc import protocol
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import Server, servers
from tests.serve.test_grpc import grpc_port
from tests.serve.test_priority import ENDLESS, Queue

TENANT = "X-Gateway-Inference-Fairness-Id"
OBJECTIVE = "X-Gateway-Inference-Objective"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, cache: Any) -> Iterator[Server]:
    """A server with one slot, behind a gateway of this machine."""
    with servers(tmp_path_factory.mktemp("narrow"), cache) as started:
        yield started.start(slots=1, gateway_from="127.0.0.0/8", objectives="premium=10,batch=-10", grpc_port=0)


@pytest.fixture
def queue(narrow: Server) -> Iterator[Queue]:
    with ExitStack() as stack:
        yield Queue(narrow, stack)
    narrow.wait_idle()


def test_each_fairness_id_has_a_share(queue: Queue) -> None:
    first = queue.add({"max_tokens": 20}, headers={TENANT: "a"})
    second = queue.add(ENDLESS, headers={TENANT: "a"})
    other = queue.add(headers={TENANT: "b"})
    queue.let_go()

    assert first.answer().status == 200
    assert other.answer().status == 200  # it came last, and its tenant had nothing yet
    assert not second.has_input(0)


def test_an_objective_goes_before_whoever_waits(queue: Queue) -> None:
    last = queue.add({"priority": 1}, headers={OBJECTIVE: "batch", TENANT: "a"})
    usual = queue.add(ENDLESS, headers={TENANT: "b"})
    urgent = queue.add({"priority": 9}, headers={OBJECTIVE: "premium", TENANT: "c"})
    queue.let_go()

    assert urgent.answer().status == 200
    assert not last.has_input(0)
    usual.reset()
    assert last.answer().status == 200


def test_a_fairness_id_that_is_too_long_is_refused_by_name(narrow: Server) -> None:
    with narrow.connect() as connection:
        answer = connection.post({"messages": []}, headers={TENANT: "a" * 129})

    assert answer.status == 400
    assert TENANT in answer.error["message"]


class GrpcCall:
    """A call over gRPC that waits in a queue."""

    def __init__(self, queue: Queue, max_tokens: int = 2, **metadata: str) -> None:
        channel = queue.stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{grpc_port(queue.server)}"))
        call = channel.unary_unary(
            f"/{protocol.SERVICE}/ModelInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelInferResponse.FromString,
        )
        with queue.server.client() as client:
            (model,) = client.models.list()
        text = Tensor("text_input", "BYTES", [1], data=[b"hi"])
        sent = infer_request(model.id, text, parameters={"max_tokens": max_tokens})
        self._future = call.future(sent, timeout=60, metadata=list(metadata.items()))
        queue.n_waiting += 1
        queue.server.wait_metric("waiting", queue.n_waiting)

    @property
    def is_done(self) -> bool:
        return bool(self._future.done())

    def cancel(self) -> None:
        self._future.cancel()

    def answer(self) -> Any:
        return self._future.result(timeout=60)


def test_a_call_over_grpc_that_says_nothing_goes_before_nobody(queue: Queue) -> None:
    first = queue.add(headers={TENANT: "a"})
    call = GrpcCall(queue, max_tokens=4000)
    queue.let_go()

    assert first.answer().status == 200  # the call would keep it waiting
    call.cancel()


def test_the_gateways_metadata_counts_as_its_headers_do(queue: Queue) -> None:
    first = queue.add(ENDLESS, headers={TENANT: "a"})
    last = GrpcCall(queue, **{TENANT.lower(): "b", OBJECTIVE.lower(): "batch"})
    urgent = GrpcCall(queue, **{TENANT.lower(): "c", OBJECTIVE.lower(): "premium"})
    queue.let_go()

    assert urgent.answer().model_name
    queue.server.wait_metric("waiting", 1)
    assert not last.is_done
    first.reset()
    assert last.answer().model_name
