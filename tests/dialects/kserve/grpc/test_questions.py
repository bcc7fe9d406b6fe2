"""What is answered without running anything: liveness, readiness, metadata and the index; and who may ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import corosrv
from corosrv.dialects.kserve.grpc import protocol
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import make_worker, serving
from tests.support.function_worker import FunctionWorker


def ask(front: GrpcFront, method: str, **fields: Any) -> Any:
    async def scenario(stub: Stub) -> Any:
        return await stub.unary(method, getattr(protocol, f"{method}Request")(**fields))

    return talk(front.port, scenario)


def failure(front: GrpcFront, method: str, metadata: list[tuple[str, str]] | None = None, **fields: Any) -> Any:
    async def scenario(stub: Stub) -> Any:
        return await status(stub.unary(method, getattr(protocol, f"{method}Request")(**fields), metadata=metadata))

    return talk(front.port, scenario)


def test_a_server_is_live_while_it_is_not_ready(front: GrpcFront, worker: FunctionWorker) -> None:
    worker.is_ready = False
    try:
        assert ask(front, "ServerLive").live
        assert not ask(front, "ServerReady").ready
    finally:
        worker.is_ready = True
    assert ask(front, "ServerReady").ready


@pytest.mark.parametrize(
    ("name", "version", "is_ready"),
    [
        ("echo", "", True),
        ("add", "", True),
        ("add", "2", True),
        ("add", "3", False),
        ("hang", "", False),
        ("nobody", "", False),
        ("", "", False),
        ("small", "", False),
    ],
)
def test_an_unknown_model_is_not_ready_and_no_error(front: GrpcFront, name: str, version: str, is_ready: bool) -> None:
    assert ask(front, "ModelReady", name=name, version=version).ready is is_ready


def test_the_server_describes_itself_without_what_is_of_rest_alone(front: GrpcFront) -> None:
    server = ask(front, "ServerMetadata")

    assert (server.name, server.version) == ("corosrv", corosrv.__version__)
    assert list(server.extensions) == ["model_repository(index)", "capability"]


def test_a_model_is_described_with_its_versions_and_tensors(front: GrpcFront) -> None:
    model = ask(front, "ModelMetadata", name="add", version="2")

    assert (model.name, sorted(model.versions), model.platform) == ("add", ["10", "2"], "corosrv-python")
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in model.inputs] == [("a", "INT32", [-1])]
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in model.outputs] == [
        ("sum", "INT64", [1, 2])
    ]


def test_an_unversioned_model_without_declarations_has_none(front: GrpcFront) -> None:
    model = ask(front, "ModelMetadata", name="echo")

    assert (list(model.versions), model.platform, len(model.inputs), len(model.outputs)) == ([], "tests", 0, 0)


@pytest.mark.parametrize("fields", [{"name": "nobody"}, {"name": "add", "version": "3"}, {"name": "small"}, {}])
def test_metadata_of_an_unknown_model_is_not_found(front: GrpcFront, fields: dict[str, str]) -> None:
    code, text, _ = failure(front, "ModelMetadata", **fields)

    assert code is grpc.StatusCode.NOT_FOUND
    assert text


def test_the_index_has_a_row_for_each_version_and_may_be_asked_for_the_ready_ones(front: GrpcFront) -> None:
    rows = {(row.name, row.version): row.state for row in ask(front, "RepositoryIndex").models}

    assert {("add", "2"), ("add", "10"), ("echo", "1")} < set(rows)
    assert rows["hang", "1"] == "UNAVAILABLE"
    assert "small" not in {name for name, _ in rows}
    ready = {(row.name, row.version) for row in ask(front, "RepositoryIndex", ready=True).models}
    assert ready == set(rows) - {("hang", "1")}


def test_bytes_that_are_no_question_are_an_invalid_argument(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> Any:
        return await status(stub.unary("ModelReady", b"\xff\xff\xff"))

    assert talk(front.port, scenario)[0] is grpc.StatusCode.INVALID_ARGUMENT


# Keys.


@pytest.fixture(scope="module")
def locked() -> Iterator[tuple[GrpcFront, FunctionWorker]]:
    worker = make_worker()
    with serving(worker, GrpcConfig(keys=("schlüssel", "two"))) as front:
        yield front, worker


@pytest.mark.parametrize(
    "metadata",
    [None, [("authorization", "Bearer wrong")], [("authorization", "Basic two")], [("authorization", "two")]],
)
def test_without_a_good_key_nothing_is_answered_but_liveness_and_readiness(
    locked: tuple[GrpcFront, FunctionWorker], metadata: list[tuple[str, str]] | None
) -> None:
    front, worker = locked

    for method in ("ModelReady", "ServerMetadata", "ModelMetadata", "RepositoryIndex", "ModelInfer"):
        assert failure(front, method, metadata)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert ask(front, "ServerLive").live
    assert ask(front, "ServerReady").ready
    assert worker.calls == []


def test_without_a_good_key_a_stream_ends(locked: tuple[GrpcFront, FunctionWorker]) -> None:
    async def scenario(stub: Stub) -> grpc.StatusCode:
        stream = stub.stream()
        await stream.done_writing()
        code: grpc.StatusCode = await stream.code()
        return code

    assert talk(locked[0].port, scenario) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_a_caller_is_named_by_its_key_as_over_http(locked: tuple[GrpcFront, FunctionWorker], name: str) -> None:
    front, worker = locked

    async def scenario(stub: Stub) -> None:
        await stub.infer(infer_request("echo"), metadata=[(name, "bearer two" if name == "authorization" else "two")])

    talk(front.port, scenario)

    caller = worker.calls.pop().job.terms.caller
    assert caller == "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"
