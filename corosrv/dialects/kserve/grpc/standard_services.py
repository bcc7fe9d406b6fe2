"""The services that every gRPC server has beside its own: health, and reflection (v1 and v1alpha).

`grpc.health.v1` says what `/v2/health/ready` says, once or at every change. Reflection tells tools such as grpcurl
which services and messages there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from corosrv.base.errors import ChannelClosed
from corosrv.dialects.kserve.grpc import protocol
from corosrv.dialects.kserve.grpc.asking import Asker
from corosrv.dialects.kserve.grpc.budget import MessageBudget
from corosrv.dialects.kserve.grpc.guard import CallGuard, CallStatus, StatusError
from corosrv.dialects.kserve.grpc.incoming import parse
from corosrv.dialects.kserve.grpc.schema import Schema, SchemaPool
from corosrv.workers.wire.calls import AskEnd

SCHEMA = Schema(
    "grpc/health/v1/health.proto",
    "grpc.health.v1",
    messages={
        "HealthCheckRequest": "string service",
        "HealthCheckResponse": "HealthCheckResponse.ServingStatus status",
    },
    enums={"HealthCheckResponse.ServingStatus": "UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN"},
    services={"Health": "Check HealthCheckRequest HealthCheckResponse, Watch HealthCheckRequest HealthCheckResponse*"},
)
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LOOK = 1.0  # seconds between two looks at the server, while somebody watches

_pool = SchemaPool([SCHEMA])
HealthCheckRequest = _pool.message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _pool.message("grpc.health.v1.HealthCheckResponse")

_SERVICES = ("", protocol.SERVICE)  # "": the server as a whole
_MAX_READS = 4  # requests that are read at once: they come from anybody, and nobody knows how long one is
_MAX_REQUEST = 4096  # bytes
_PATIENCE = 1.0  # seconds in which a request has to come


class HealthService:
    """Answers probes, which have no keys. Belongs to one event loop."""

    def __init__(self, asker: Asker, guard: CallGuard, max_watches: int) -> None:
        """`max_watches`: how many calls may watch at once, as each is one of the calls that the server takes."""
        self._readiness = ReadinessWatch(asker)
        self._guard = guard
        self._max_watches = max_watches
        self._n_watches = 0
        self._n_reads = 0

    def handler(self) -> Any:
        """Returns what a server of grpcio takes."""
        methods = {
            "Check": self._guard.unary("Health.Check", self._check, is_open=True),
            "Watch": self._guard.stream("Health.Watch", self._watch, is_open=True),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    def stop(self) -> None:
        """Sends NOT_SERVING to all watchers, and ends their calls."""
        self._readiness.stop()

    async def _check(self, context: Any, caller: str) -> bytes:
        service = await self._service(context)
        if service not in _SERVICES:
            raise StatusError(CallStatus(grpc.StatusCode.NOT_FOUND, f"there is no service {service!r:.120}"))
        return _answer(SERVING if await self._readiness.ask() else NOT_SERVING)

    async def _watch(self, context: Any, caller: str) -> None:
        if self._n_watches >= self._max_watches:
            problem = f"{self._n_watches} calls watch already, which are all that may"
            raise StatusError(CallStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, problem))
        self._n_watches += 1
        try:
            await self._tell_changes(context, await self._service(context) in _SERVICES)
        finally:
            self._n_watches -= 1

    async def _tell_changes(self, context: Any, is_known: bool) -> None:
        is_ready: bool | None = None
        if not is_known:
            await context.write(_answer(SERVICE_UNKNOWN))
        while is_ready is not False or not self._readiness.is_stopped:
            is_ready = await self._readiness.after(is_ready)
            if is_known:
                await context.write(_answer(SERVING if is_ready else NOT_SERVING))
        raise StatusError(CallStatus(grpc.StatusCode.UNAVAILABLE, "the server is stopping"))

    async def _service(self, context: Any) -> str:
        """Reads which service a call asks about. Raises StatusError and Refused.

        A call is taken to ask about the server as a whole where others have their requests read, and take their time:
        so nobody can keep probes from their answer, or fill the memory, with requests that are long or never end.
        """
        if self._n_reads >= _MAX_READS:
            return ""
        self._n_reads += 1
        reading = asyncio.ensure_future(context.read())  # never cancelled: grpcio would not free what has come
        reading.add_done_callback(self._end_read)
        await asyncio.wait((reading,), timeout=_PATIENCE)
        if not reading.done():
            problem = f"the request did not come within {_PATIENCE:g} seconds"
            raise StatusError(CallStatus(grpc.StatusCode.DEADLINE_EXCEEDED, problem))
        data = reading.result()
        request = parse(HealthCheckRequest, b"" if data is grpc.aio.EOF else data, _MAX_REQUEST)
        service: str = request.service
        return service

    def _end_read(self, reading: asyncio.Future[Any]) -> None:
        self._n_reads -= 1
        if not reading.cancelled():
            reading.exception()  # of a client that has gone


class ReadinessWatch:
    """Follows whether the server is ready, and looks at it again and again only while somebody waits for a change."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._looking: asyncio.Task[bool] | None = None
        self._stopped = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Sets the server to not ready for good, and wakes all waiters."""
        self._stopped.set()

    async def ask(self) -> bool:
        """Asks the server now."""
        if self.is_stopped:
            return False
        try:
            answer = await self._asker.info("ready")
        except ChannelClosed:
            return False
        return not isinstance(answer, AskEnd) and bool(answer["ready"])

    async def after(self, was_ready: bool | None) -> bool:
        """Returns whether the server is ready, once that is another answer than `was_ready`, or it was stopped."""
        is_ready = await self.ask()
        while is_ready is was_ready and not self.is_stopped:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            is_ready = await asyncio.shield(self._looking)
        return is_ready and not self.is_stopped

    async def _look(self) -> bool:
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait((stopped,), timeout=LOOK)
        stopped.cancel()
        self._looking = None
        return await self.ask()


def _answer(status: int) -> bytes:
    return bytes(HealthCheckResponse(status=status).SerializeToString())


REFLECTION_VERSIONS = ("v1", "v1alpha")

_REFLECTION_MESSAGES = {
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
_REFLECTION = "ServerReflectionInfo"
_MOST_QUESTION = 65_536  # bytes
_NOT_FOUND, _INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT


def reflection_schema(version: str) -> Schema:
    """Describes the protocol of a version, which differs in its names alone."""
    return Schema(
        f"grpc/reflection/{version}/reflection.proto",
        f"grpc.reflection.{version}",
        _REFLECTION_MESSAGES,
        services={"ServerReflection": f"{_REFLECTION} ServerReflectionRequest* ServerReflectionResponse*"},
    )


class ReflectionService:
    """Answers questions about some schemas, and about its own, over one version of the protocol."""

    def __init__(self, version: str, guard: CallGuard, budget: MessageBudget, schemas: Sequence[Schema]) -> None:
        """`budget`: of the requests of all services."""
        self._package = f"grpc.reflection.{version}"
        self._guard = guard
        self._budget = budget
        self._known = SchemaPool([*schemas, *map(reflection_schema, REFLECTION_VERSIONS)])
        self._request = self._known.message(f"{self._package}.ServerReflectionRequest")
        self._response = self._known.message(f"{self._package}.ServerReflectionResponse")

    def handler(self) -> Any:
        """Returns what a server of grpcio takes."""
        methods = {_REFLECTION: self._guard.stream(f"ServerReflection.{_REFLECTION}", self._serve)}
        return grpc.method_handlers_generic_handler(f"{self._package}.ServerReflection", methods)

    async def _serve(self, context: Any, caller: str) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            with self._budget.share() as share:
                share.resize(len(data))
                request = parse(self._request, data, _MOST_QUESTION)
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
