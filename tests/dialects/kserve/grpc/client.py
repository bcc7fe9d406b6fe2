"""A client of the gRPC front over the front's own messages, in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import gevent
import grpc

from corosrv.dialects.kserve.grpc import conversions, protocol
from corosrv.formats.tensors import Tensor

T = TypeVar("T")

TIMEOUT = 30.0  # seconds of any test
SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function while this thread's greenlets go on."""
    with gevent.Timeout(TIMEOUT):
        result: T = gevent.get_hub().threadpool.apply(function, arguments)
        return result


class Stub:
    """The methods of the service on one channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary(self, method: str, request: Any, **options: Any) -> Any:
        """Calls a method; awaiting the result gives the answer."""
        call = self._channel.unary_unary(
            f"/{protocol.SERVICE}/{method}",
            request_serializer=_serialized,
            response_deserializer=getattr(protocol, f"{method}Response").FromString,
        )
        return call(request, **options)

    def infer(self, request: Any, **options: Any) -> Any:
        return self.unary("ModelInfer", request, **options)

    def without_message(self, method: str, service: str = protocol.SERVICE) -> Any:
        """Calls a method and sends no message; awaiting the result gives the answer."""
        return self._channel.stream_unary(f"/{service}/{method}")()

    def stream(self, **options: Any) -> Any:
        """Opens ModelStreamInfer; the call has `write`, `done_writing`, `read` and `cancel`."""
        call = self._channel.stream_stream(
            f"/{protocol.SERVICE}/ModelStreamInfer",
            request_serializer=_serialized,
            response_deserializer=protocol.ModelStreamInferResponse.FromString,
        )
        return call(**options)


def _serialized(message: Any) -> bytes:
    """Returns a message's bytes; those that a test made itself go as they are."""
    return message if isinstance(message, bytes) else message.SerializeToString()


Scenario = Callable[[Stub], Awaitable[T]]


def talk(port: int, scenario: Scenario[T]) -> T:
    """Runs a scenario on a channel to the front; this thread's greenlets go on meanwhile."""

    async def with_channel() -> T:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=SIZES) as channel:
            return await scenario(Stub(channel))

    return in_thread(asyncio.run, with_channel())


def infer_request(
    model: str,
    *tensors: Tensor,
    id: str = "",
    version: str = "",
    outputs: Iterable[str] = (),
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a request with raw contents."""
    request = protocol.ModelInferRequest(model_name=model, model_version=version, id=id)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(bytes(tensor.raw))
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], field, value)
    return request


def typed_request(model: str, *tensors: Tensor, **options: Any) -> Any:
    """Makes a request with typed contents."""
    request = infer_request(model, **options)
    for tensor in tensors:
        input_tensor = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        conversions.add_typed(input_tensor.contents, tensor)
    return request


def value_of(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


async def status(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Returns how a call fails: its code, words and trailing metadata. Fails if it does not."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    raise AssertionError(f"the call went well: {answer}")
