"""KServe's service and its methods, each call of which is one ask and its answers.

The requests on one stream of ModelStreamInfer run side by side.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import grpc

from corosrv.base.errors import AnswerTooLarge, CorosrvError, FrameTooLarge, HandlerFailed, NotFound, Refused
from corosrv.dialects.kserve.grpc import conversions, guard, incoming, protocol
from corosrv.dialects.kserve.grpc.asking import LONG_COPY, Asker, Outputs, RunningAsk
from corosrv.dialects.kserve.grpc.budget import LARGE, MessageBudget, MessageShare
from corosrv.dialects.kserve.grpc.conversions import GrpcCall
from corosrv.dialects.kserve.grpc.guard import CallCounts, CallGuard, CallMetadata
from corosrv.dialects.kserve.grpc.incoming import inflated_bytes, most_bytes, parse
from corosrv.dialects.kserve.parameters import call_terms
from corosrv.web.inference_gateway import InferenceGateway
from corosrv.workers.wire.calls import Ask, AskEnd, WireRequest, WireTensor

log = logging.getLogger("corosrv.grpc")

P = ParamSpec("P")
T = TypeVar("T")

LONG_MESSAGE = 1 << 20  # bytes whose conversion is left to a thread, so that other calls go on meanwhile

# Each has several copies of a message while it converts one, and they would take the interpreter from each other.
_threads = ThreadPoolExecutor(2, "corosrv-long-messages")


async def convert(n_bytes: int, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Calls a function that reads or writes so many bytes. Waits while others do that with many."""
    if n_bytes < LONG_MESSAGE:
        return function(*arguments, **keywords)
    call = functools.partial(function, *arguments, **keywords)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def read_call(data: bytes, max_message: int, share: MessageShare) -> GrpcCall:
    """Reads a ModelInferRequest as it came, and counts what it takes. Raises Refused, NotOffered and StatusError."""
    request, cut = await read_message(data, max_message, share)
    return await read_request(data, request, cut, share)


async def read_message(data: bytes, max_message: int, share: MessageShare) -> tuple[Any, list[memoryview]]:
    """Reads the message itself, and its raw contents if they are not in it. Raises Refused and StatusError."""
    share.resize(incoming.inflated_bytes(data, max_message))
    # Unless it inflates it, protobuf takes a few milliseconds at the worst; to a thread and back is longer than most.
    is_quick = len(data) < LONG_COPY and not incoming.is_compressed(data)
    n_bytes = 0 if is_quick else incoming.most_bytes(data)
    return await convert(n_bytes, incoming.parse_request, data, max_message)


async def read_request(data: bytes, request: Any, cut: list[memoryview], share: MessageShare) -> GrpcCall:
    """Reads what `read_message` gave. Raises Refused, NotOffered and StatusError."""
    n_bytes = incoming.most_bytes(data)
    if LONG_MESSAGE <= n_bytes < LONG_COPY and conversions.is_copied_only(request, cut):
        n_bytes = 0
    call = await convert(n_bytes, conversions.read, request, cut)
    share.resize(max(len(data), sum(tensor.n_bytes for tensor in call.inputs)))
    return call


async def begin(
    asker: Asker, call: GrpcCall, metadata: CallMetadata, remaining: float | None, *, is_stream: bool
) -> RunningAsk:
    """Asks for a call; leaving the `with` block of what is returned cancels it unless it has ended.

    `remaining`: the seconds until the deadline of gRPC. Raises Refused, and what Asker.begin raises.
    """
    make_ask = functools.partial(_ask, call, metadata, remaining, is_stream)
    try:
        return await asker.begin(call.inputs, make_ask)
    except FrameTooLarge:
        raise Refused("the names, shapes and parameters of the request are too large together") from None


def _ask(
    call: GrpcCall,
    metadata: CallMetadata,
    remaining: float | None,
    is_stream: bool,
    number: int,
    inputs: list[WireTensor],
) -> Ask:
    capability = metadata.capability
    if bool(call.model) == bool(capability.query):
        if call.model:
            raise Refused("both model_name and a capability (metadata x-capability-KEY) are there; send one of them")
        raise NotFound("model_name is empty, and no capability (metadata x-capability-KEY) is asked for", "model_name")
    if call.model and (capability.prefer or capability.is_fuzzy):
        raise Refused("x-prefer and x-fuzzy are for calls by capability, and this one names a model")
    now = time.monotonic()
    terms = call_terms(
        metadata.header,
        call.front,
        now,
        caller=metadata.caller,
        request_id=metadata.request_id,
        session=call.parameters.get("sequence_id", ""),
    )
    if metadata.flow is not None:
        terms = metadata.flow.place(terms)
    limits = [remaining, None if terms.deadline is None else terms.deadline - now]
    budget = min((limit for limit in limits if limit is not None), default=None)
    return Ask(
        number=number,
        request=WireRequest(inputs, call.id, dict(call.parameters), call.outputs),
        model=call.model,
        version=call.version,
        capability=dict(capability.query) or None,
        prefer=dict(capability.prefer),
        is_fuzzy=capability.is_fuzzy,
        stream=is_stream,
        budget_us=None if budget is None else max(0, round(budget * 1e6)),
        priority=terms.priority,
        request_id=terms.request_id,
        session=terms.session,
        caller=terms.caller,
        owner=terms.owner,
        tier=None if metadata.flow is None else metadata.flow.tier,
        idempotency_key=terms.idempotency_key,
        object_inputs=call.object_inputs,
        headers=dict(terms.headers),
    )


async def answer_once(ask: RunningAsk, call: GrpcCall, max_message: int) -> tuple[bytes, AskEnd]:
    """Returns the ModelInferResponse of a unary call, serialized, and its end.

    Raises StatusError if the call fails, and AnswerTooLarge.
    """
    answer: Outputs | None = None
    while not isinstance(item := await ask.receive(), AskEnd):
        answer = item
        ask.pass_on()
    if item.fault is not None:
        raise guard.StatusError(guard.of_fault(item.fault, item.is_replayed))
    if answer is None:
        raise HandlerFailed("the handler gave no answer")
    return await encode(_serialized, call, answer, max_message), item


async def encode(
    serialize: Callable[[GrpcCall, Outputs], bytes], call: GrpcCall, answer: Outputs, max_message: int
) -> bytes:
    """Returns the message of an answer. Raises AnswerTooLarge, before it is made where its outputs say enough."""
    if conversions.least_size(answer.tensors, is_raw=call.is_raw) > max_message:
        raise AnswerTooLarge(max_message)
    n_bytes = sum(tensor.n_bytes for tensor in answer.tensors)
    if LONG_MESSAGE <= n_bytes < LONG_COPY and conversions.goes_raw(answer.tensors, is_raw=call.is_raw):
        n_bytes = 0
    data = await convert(n_bytes, serialize, call, answer)
    if len(data) > max_message:
        raise AnswerTooLarge(max_message)
    return data


def _serialized(call: GrpcCall, answer: Outputs) -> bytes:
    return conversions.serialized(call.id, answer.message, answer.tensors, is_raw=call.is_raw)


MAX_IN_FLIGHT = 64  # requests of one stream; no more are read until one of them has ended


class InferStream:
    """Serves one stream: reads requests, runs them side by side, and writes their answers as they come."""

    def __init__(
        self,
        context: Any,
        asker: Asker,
        metadata: CallMetadata,
        max_message: int,
        budget: MessageBudget,
        count: Callable[[str], Awaitable[None]],
    ) -> None:
        """`max_message`: bytes of a request, once it is inflated, and of an answer. `budget`: of all requests.

        `count`: counts a request of a caller; see CallGuard.count.
        """
        self._context = context
        self._count = count
        self._asker = asker
        self._metadata = metadata
        self._max_message = max_message
        self._budget = budget
        self._writing = asyncio.Lock()  # one message at a time can be written

    async def serve(self) -> None:
        """Returns when the client has closed its side and every request has ended; cancelled, it cancels them."""
        room = asyncio.Semaphore(MAX_IN_FLIGHT)
        tasks: set[asyncio.Task[None]] = set()

        def end(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            room.release()

        try:
            while True:
                await room.acquire()
                data = await self._context.read()
                if data is grpc.aio.EOF:
                    break
                task = asyncio.create_task(self._serve_request(data, self._budget.share()))
                del data  # whose only owner frees it as soon as it can
                tasks.add(task)
                task.add_done_callback(end)
            while tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _serve_request(self, data: bytes, share: MessageShare) -> None:
        call_id = model = ""
        try:
            await self._count(self._metadata.caller)
            request, cut = await read_message(data, self._max_message, share)
            call_id, model = request.id, request.model_name
            call = await read_request(data, request, cut, share)
            del request, cut, data  # the call has what it needs
            remaining = self._context.time_remaining()
            with await begin(self._asker, call, self._metadata, remaining, is_stream=True) as ask:
                await self._pass_on(call, ask)
        except guard.StatusError as error:
            await self._fail(call_id, model, error.status.text)
        except CorosrvError as error:
            await self._fail(call_id, model, str(error))
        except Exception:
            log.exception("a request on a stream could not be answered")
            await self._fail(call_id, model, "the request failed; the server's log says why")
        finally:
            share.resize(0)

    async def _pass_on(self, call: GrpcCall, ask: RunningAsk) -> None:
        has_final = False
        while not isinstance(item := await ask.receive(), AskEnd):
            has_final = has_final or item.message.is_final
            await self._write(await encode(_stream_message, call, item, self._max_message))
            ask.pass_on()
        if item.is_replayed:
            self._context.set_trailing_metadata(guard.REPLAYED)
        if item.fault is not None:
            raise guard.StatusError(guard.of_fault(item.fault, item.is_replayed))
        if call.front.wants_empty_final and not has_final:
            empty = conversions.empty_response(call.id, item)
            await self._write(conversions.stream_response(empty, is_final=True).SerializeToString())

    async def _fail(self, call_id: str, model: str, text: str) -> None:
        await self._write(conversions.stream_error(text, call_id, model).SerializeToString())

    async def _write(self, data: bytes) -> None:
        """Waits while the client does not read. Raises CancelledError where it has gone: nobody waits for the rest."""
        async with self._writing:
            try:
                await self._context.write(data)
            except (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError):
                raise asyncio.CancelledError from None


def _stream_message(call: GrpcCall, answer: Outputs) -> bytes:
    message = conversions.response(call.id, answer.message, answer.tensors, is_raw=call.is_raw)
    data: bytes = conversions.stream_response(message, is_final=answer.message.is_final).SerializeToString()
    return data


class InferenceService:
    """Answers GRPCInferenceService by asking the server. Methods that are not here are UNIMPLEMENTED."""

    def __init__(
        self,
        asker: Asker,
        guard: CallGuard,
        counts: CallCounts,
        max_message: int,
        budget: MessageBudget,
        gateway: InferenceGateway,
    ) -> None:
        """`max_message`: bytes of a request, once it is inflated, and of an answer. `budget`: of all requests."""
        self._asker = asker
        self._guard = guard
        self._counts = counts
        self._max_message = max_message
        self._budget = budget
        self._gateway = gateway

    def handler(self) -> Any:
        """Returns what a server of grpcio takes."""
        answers: dict[str, tuple[Any, Callable[[Any, str], Awaitable[Any]]]] = {
            "ModelReady": (protocol.ModelReadyRequest, self._model_ready),
            "ServerMetadata": (protocol.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": (protocol.ModelMetadataRequest, self._model_metadata),
            "RepositoryIndex": (protocol.RepositoryIndexRequest, self._repository_index),
        }
        unary = self._guard.unary
        methods = {name: unary(name, self._reading(kind, answer)) for name, (kind, answer) in answers.items()}
        methods["ServerLive"] = unary("ServerLive", self._server_live, is_open=True)
        methods["ServerReady"] = unary("ServerReady", self._server_ready, is_open=True)
        methods["ModelInfer"] = unary("ModelInfer", self._model_infer, counts=True)
        methods["ModelStreamInfer"] = self._guard.stream("ModelStreamInfer", self._model_stream_infer)
        return grpc.method_handlers_generic_handler(protocol.SERVICE, methods)

    # Calls.

    async def _model_infer(self, context: Any, caller: str) -> bytes:
        own = guard.read(context, caller, self._gateway)
        with self._budget.share() as share:
            call = await read_call(await share.read(context), self._max_message, share)
            with await begin(self._asker, call, own, context.time_remaining(), is_stream=False) as ask:
                answer, end = await answer_once(ask, call, self._max_message)
        if len(answer) >= LARGE:
            self._budget.trim_soon()
        if end.is_replayed:
            context.set_trailing_metadata(guard.REPLAYED)
        return answer

    async def _model_stream_infer(self, context: Any, caller: str) -> None:
        with self._counts.open_stream():
            own = guard.read(context, caller, self._gateway)
            stream = InferStream(context, self._asker, own, self._max_message, self._budget, self._guard.count)
            await stream.serve()

    # Questions.

    def _reading(
        self, kind: Any, answer: Callable[[Any, str], Awaitable[Any]]
    ) -> Callable[[Any, str], Awaitable[bytes]]:
        """Returns what reads a request, and gives the bytes of its answer."""

        async def handle(context: Any, caller: str) -> bytes:
            with self._budget.share() as share:
                request = await self._read(kind, context, share)
            message = await answer(request, caller)
            serialized: bytes = message.SerializeToString()
            return serialized

        return handle

    async def _read(self, kind: Any, context: Any, share: MessageShare) -> Any:
        data = await share.read(context)
        share.resize(inflated_bytes(data, self._max_message))
        return await convert(most_bytes(data), parse, kind, data, self._max_message)

    async def _info(self, subject: str, model: str = "", version: str = "", caller: str = "") -> dict[str, Any]:
        answer = await self._asker.info(subject, model, version, caller)
        if isinstance(answer, AskEnd):
            assert answer.fault is not None, "only what fails has an end"
            raise guard.StatusError(guard.of_fault(answer.fault))
        return answer

    # Requests of these two say nothing, and anybody may send one of any length: they are not read.

    async def _server_live(self, context: Any, caller: str) -> bytes:
        await self._info("live")
        return bytes(protocol.ServerLiveResponse(live=True).SerializeToString())

    async def _server_ready(self, context: Any, caller: str) -> bytes:
        ready = (await self._info("ready"))["ready"]
        return bytes(protocol.ServerReadyResponse(ready=ready).SerializeToString())

    async def _model_ready(self, request: Any, caller: str) -> Any:
        answer = await self._info("model_ready", request.name, request.version, caller)
        return protocol.ModelReadyResponse(ready=answer["ready"])

    async def _server_metadata(self, request: Any, caller: str) -> Any:
        return protocol.ServerMetadataResponse(**await self._info("server"))

    async def _model_metadata(self, request: Any, caller: str) -> Any:
        return protocol.ModelMetadataResponse(**await self._info("model", request.name, request.version, caller))

    async def _repository_index(self, request: Any, caller: str) -> Any:
        rows = (await self._info("index", caller=caller))["models"]
        if request.ready:
            rows = [row for row in rows if row["state"] == "READY"]
        return protocol.RepositoryIndexResponse(models=rows)
