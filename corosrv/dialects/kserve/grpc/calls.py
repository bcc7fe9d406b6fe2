"""One call of a model or a capability: its ask, and its answers."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from corosrv.base.errors import AnswerTooLarge, FrameTooLarge, HandlerFailed, NotFound, Refused
from corosrv.dialects.kserve.grpc import conversions, guard, incoming
from corosrv.dialects.kserve.grpc.asking import LONG_COPY, Asker, Outputs, RunningAsk
from corosrv.dialects.kserve.grpc.budget import MessageShare
from corosrv.dialects.kserve.grpc.conversions import GrpcCall
from corosrv.dialects.kserve.grpc.guard import CallMetadata
from corosrv.dialects.kserve.parameters import call_terms
from corosrv.workers.wire.calls import Ask, AskEnd, WireRequest, WireTensor

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
