"""gRPC's protocol of reflection, v1 and v1alpha: tells tools such as grpcurl which services and messages there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from corosrv.dialects.kserve.grpc.budget import MessageBudget
from corosrv.dialects.kserve.grpc.guard import CallGuard
from corosrv.dialects.kserve.grpc.incoming import parse
from corosrv.dialects.kserve.grpc.schema import Schema, SchemaPool

VERSIONS = ("v1", "v1alpha")

_MESSAGES = {
    "ServerReflectionRequest": "string host, string file_by_filename=3@message_request, "
    "string file_containing_symbol@message_request, ExtensionRequest file_containing_extension@message_request, "
    "string all_extension_numbers_of_type@message_request, string list_services@message_request",
    "ExtensionRequest": "string containing_type, int32 extension_number",
    "ServerReflectionResponse": "string valid_host, ServerReflectionRequest original_request, "
    "FileDescriptorResponse file_descriptor_response=4@message_response, "
    "ExtensionNumberResponse all_extension_numbers_response@message_response, "
    "ListServiceResponse list_services_response@message_response, ErrorResponse error_response@message_response",
    "FileDescriptorResponse": "bytes* file_descriptor_proto",
    "ExtensionNumberResponse": "string base_type_name, int32* extension_number",
    "ListServiceResponse": "ServiceResponse* service",
    "ServiceResponse": "string name",
    "ErrorResponse": "int32 error_code, string error_message",
}
_METHOD = "ServerReflectionInfo"
_MAX_REQUEST = 65_536  # bytes
_NOT_FOUND, _INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT


def schema(version: str) -> Schema:
    """Describes the protocol of a version, which differs in its names alone."""
    return Schema(
        f"grpc/reflection/{version}/reflection.proto",
        f"grpc.reflection.{version}",
        _MESSAGES,
        services={"ServerReflection": f"{_METHOD} ServerReflectionRequest* ServerReflectionResponse*"},
    )


class ReflectionService:
    """Answers questions about some schemas, and about its own, over one version of the protocol."""

    def __init__(self, version: str, guard: CallGuard, budget: MessageBudget, schemas: Sequence[Schema]) -> None:
        """`budget`: of the requests of all services."""
        self._package = f"grpc.reflection.{version}"
        self._guard = guard
        self._budget = budget
        self._known = SchemaPool([*schemas, *map(schema, VERSIONS)])
        self._request = self._known.message(f"{self._package}.ServerReflectionRequest")
        self._response = self._known.message(f"{self._package}.ServerReflectionResponse")

    def handler(self) -> Any:
        """Returns what a server of grpcio takes."""
        methods = {_METHOD: self._guard.stream(f"ServerReflection.{_METHOD}", self._serve)}
        return grpc.method_handlers_generic_handler(f"{self._package}.ServerReflection", methods)

    async def _serve(self, context: Any, caller: str) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            with self._budget.share() as share:
                share.resize(len(data))
                request = parse(self._request, data, _MAX_REQUEST)
            await context.write(self._answer(request).SerializeToString())

    def _answer(self, request: Any) -> Any:
        response = self._response(valid_host=request.host, original_request=request)
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._known.service_names():
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._add_file(response, self._known.file_named(request.file_by_filename), request.file_by_filename)
            case "file_containing_symbol":
                symbol = request.file_containing_symbol
                self._add_file(response, self._known.file_with(symbol), symbol)
            case "file_containing_extension":  # of which proto3 has none
                extension = request.file_containing_extension
                self._add_file(response, None, f"{extension.containing_type}:{extension.extension_number}")
            case "all_extension_numbers_of_type":
                self._add_extensions(response, request.all_extension_numbers_of_type)
            case _:
                _add_error(response, _INVALID, "the request asks for nothing")
        return response

    def _add_file(self, response: Any, file: Any, name: str) -> None:
        if file is None:
            _add_error(response, _NOT_FOUND, f"there is no {name!r:.120}")
        else:
            response.file_descriptor_response.file_descriptor_proto.append(file.SerializeToString())

    def _add_extensions(self, response: Any, name: str) -> None:
        if self._known.file_with(name) is None:
            _add_error(response, _NOT_FOUND, f"there is no {name!r:.120}")
        else:
            response.all_extension_numbers_response.base_type_name = name


def _add_error(response: Any, code: grpc.StatusCode, text: str) -> None:
    response.error_response.error_code = code.value[0]
    response.error_response.error_message = text
