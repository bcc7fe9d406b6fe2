"""gRPC's reflection, asked as tools do: they know nothing of our messages, and make calls with what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from tests.dialects.kserve.grpc.client import TIMEOUT, in_thread
from tests.dialects.kserve.grpc.conftest import make_worker, serving

T = TypeVar("T")

SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
]
KEY = (("authorization", "Bearer good"),)


def with_pool(port: int, scenario: Callable[[Any, DescriptorPool], T]) -> T:
    """Calls a function with a channel, and a pool that asks the server for what it lacks."""

    def run() -> T:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            return scenario(channel, DescriptorPool(ProtoReflectionDescriptorDatabase(channel)))

    return in_thread(run)


def test_a_call_is_made_with_nothing_but_what_reflection_tells(front: GrpcFront) -> None:
    def scenario(channel: Any, pool: DescriptorPool) -> Any:
        method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelInfer"]
        make, read = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        call = channel.unary_unary(
            f"/{method.containing_service.full_name}/{method.name}", make.SerializeToString, read.FromString
        )
        request = make(model_name="echo", id="by reflection", raw_input_contents=[b"\x07"])
        request.inputs.add(name="x", datatype="UINT8", shape=[1])
        request.parameters["deep"].bool_param = True
        return call(request, timeout=TIMEOUT)

    answer = with_pool(front.port, scenario)

    assert (answer.id, list(answer.raw_output_contents)) == ("by reflection", [b"\x07"])
    assert answer.parameters["deep"].WhichOneof("parameter_choice") == "bool_param"


def test_every_method_that_is_told_of_is_there(front: GrpcFront) -> None:
    def scenario(channel: Any, pool: DescriptorPool) -> dict[str, grpc.StatusCode]:
        codes = {}
        for service in SERVICES:
            for method in pool.FindServiceByName(service).methods:
                call = channel.stream_stream(f"/{service}/{method.name}")(iter([b""]), timeout=1.0)
                codes[f"{service}/{method.name}"] = call.code()
        return codes

    codes = with_pool(front.port, scenario)

    assert len(codes) == 12
    assert grpc.StatusCode.UNIMPLEMENTED not in codes.values(), codes


def test_the_services_are_listed(front: GrpcFront) -> None:
    def names(channel: Any, pool: DescriptorPool) -> Any:
        return ProtoReflectionDescriptorDatabase(channel).get_services()

    assert sorted(with_pool(front.port, names)) == SERVICES


def test_the_kind_of_a_stream_and_of_an_enum_is_told(front: GrpcFront) -> None:
    def scenario(channel: Any, pool: DescriptorPool) -> Any:
        infer = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelStreamInfer"]
        status = pool.FindEnumTypeByName("grpc.health.v1.HealthCheckResponse.ServingStatus")
        return infer.client_streaming, infer.server_streaming, status.values_by_name["NOT_SERVING"].number

    assert with_pool(front.port, scenario) == (True, True, 2)


# The questions one by one, over both versions, whose messages are the same.


def ask(port: int, version: str, *requests: Any, metadata: Any = ()) -> list[Any]:
    async def scenario() -> list[Any]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )(timeout=TIMEOUT, metadata=metadata)
            answers = []
            for request in requests:
                await call.write(request)
                answers.append(await call.read())
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
            return answers

    return in_thread(asyncio.run, scenario())


def question(**fields: Any) -> Any:
    return reflection_pb2.ServerReflectionRequest(host="here", **fields)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_files_are_found_by_name_and_by_what_they_define(front: GrpcFront, version: str) -> None:
    symbols = [
        "inference.ModelInferRequest.InferInputTensor",
        "inference.GRPCInferenceService",
        "inference.GRPCInferenceService.ModelInfer",
    ]
    requests = [question(file_by_filename="corosrv/inference.proto")]
    requests += [question(file_containing_symbol=symbol) for symbol in symbols]

    answers = ask(front.port, version, *requests)

    assert [answer.original_request for answer in answers] == requests
    assert {answer.valid_host for answer in answers} == {"here"}
    files = {file for answer in answers for file in answer.file_descriptor_response.file_descriptor_proto}
    (file,) = map(descriptor_pb2.FileDescriptorProto.FromString, files)
    assert (file.package, file.service[0].name) == ("inference", "GRPCInferenceService")


@pytest.mark.parametrize(
    "unknown",
    [
        question(file_by_filename="other.proto"),
        question(file_containing_symbol="inference.Other"),
        question(file_containing_symbol=""),
        question(file_containing_extension=reflection_pb2.ExtensionRequest(containing_type="inference.X")),
        question(all_extension_numbers_of_type="inference.Other"),
    ],
)
def test_what_is_not_there_is_not_found(front: GrpcFront, unknown: Any) -> None:
    (answer,) = ask(front.port, "v1", unknown)

    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert answer.error_response.error_message


def test_a_message_has_no_extensions(front: GrpcFront) -> None:
    (answer,) = ask(front.port, "v1", question(all_extension_numbers_of_type="inference.ModelInferRequest"))

    assert answer.all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"
    assert not answer.all_extension_numbers_response.extension_number


def test_a_question_about_nothing_is_invalid(front: GrpcFront) -> None:
    (answer,) = ask(front.port, "v1", question())

    assert answer.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


# Keys.


@pytest.fixture(scope="module")
def keyed() -> Iterator[GrpcFront]:
    with serving(make_worker(), GrpcConfig(keys=("good",))) as front:
        yield front


def test_reflection_needs_the_key(keyed: GrpcFront) -> None:
    async def without_key() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{keyed.port}") as channel:
            call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(timeout=TIMEOUT)
            return await call.code()

    assert in_thread(asyncio.run, without_key()) is grpc.StatusCode.UNAUTHENTICATED
    (answer,) = ask(keyed.port, "v1", question(list_services="*"), metadata=KEY)
    assert [service.name for service in answer.list_services_response.service]
