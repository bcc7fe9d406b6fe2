"""ModelStreamInfer: requests on one stream, each with its own answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc

from corosrv.base.errors import CorosrvError
from corosrv.dialects.kserve.grpc import responses, statuses
from corosrv.dialects.kserve.grpc.asking import Asker, Outputs, RunningAsk
from corosrv.dialects.kserve.grpc.budget import MessageBudget, MessageShare
from corosrv.dialects.kserve.grpc.calls import encode, read_message, read_request, running
from corosrv.dialects.kserve.grpc.metadata import CallMetadata
from corosrv.dialects.kserve.grpc.requests import GrpcCall
from corosrv.workers.wire.calls import AskEnd

log = logging.getLogger("corosrv.grpc")

MAX_IN_FLIGHT = 64  # requests of one stream; no more are read until one of them has ended


class InferStream:
    """Serves one stream: reads requests, runs them side by side, and writes their answers as they come."""

    def __init__(
        self, context: Any, asker: Asker, metadata: CallMetadata, max_message: int, budget: MessageBudget
    ) -> None:
        """`max_message`: bytes of a request, once it is inflated, and of an answer. `budget`: of all requests."""
        self._context = context
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
            request, cut = await read_message(data, self._max_message, share)
            call_id, model = request.id, request.model_name
            call = await read_request(data, request, cut, share)
            del request, cut, data  # the call has what it needs
            remaining = self._context.time_remaining()
            async with running(self._asker, call, self._metadata, remaining, is_stream=True) as ask:
                await self._pass_on(call, ask)
        except statuses.StatusError as error:
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
            await self._write(await encode(_serialized, call, item, self._max_message))
            ask.pass_on()
        if item.is_replayed:
            self._context.set_trailing_metadata(statuses.REPLAYED)
        if item.status:
            raise statuses.StatusError(statuses.of_end(item))
        if call.front.wants_empty_final and not has_final:
            empty = responses.empty_response(call.id, item)
            await self._write(responses.stream_response(empty, is_final=True).SerializeToString())

    async def _fail(self, call_id: str, model: str, text: str) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):  # the client has gone
            await self._write(responses.stream_error(text, call_id, model).SerializeToString())

    async def _write(self, data: bytes) -> None:
        """Waits while the client does not read."""
        async with self._writing:
            await self._context.write(data)


def _serialized(call: GrpcCall, answer: Outputs) -> bytes:
    message = responses.response(call.id, answer.message, answer.tensors, is_raw=call.is_raw)
    data: bytes = responses.stream_response(message, is_final=answer.message.is_final).SerializeToString()
    return data
