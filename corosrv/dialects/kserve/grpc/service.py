"""KServe's service and its methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from corosrv.dialects.kserve.grpc import metadata, protocol, statuses
from corosrv.dialects.kserve.grpc.asking import Asker
from corosrv.dialects.kserve.grpc.budget import LARGE, MessageBudget, MessageShare
from corosrv.dialects.kserve.grpc.call_counts import CallCounts
from corosrv.dialects.kserve.grpc.calls import answer_once, convert, read_call, running
from corosrv.dialects.kserve.grpc.guard import CallGuard
from corosrv.dialects.kserve.grpc.incoming import inflated_bytes, most_bytes, parse
from corosrv.dialects.kserve.grpc.streaming import InferStream
from corosrv.workers.wire.calls import AskEnd


class InferenceService:
    """Answers GRPCInferenceService by asking the server. Methods that are not here are UNIMPLEMENTED."""

    def __init__(
        self, asker: Asker, guard: CallGuard, counts: CallCounts, max_message: int, budget: MessageBudget
    ) -> None:
        """`max_message`: bytes of a request, once it is inflated, and of an answer. `budget`: of all requests."""
        self._asker = asker
        self._guard = guard
        self._counts = counts
        self._max_message = max_message
        self._budget = budget

    def handler(self) -> Any:
        """Returns what a server of grpcio takes."""
        answers: dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]] = {
            "ModelReady": (protocol.ModelReadyRequest, self._model_ready),
            "ServerMetadata": (protocol.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": (protocol.ModelMetadataRequest, self._model_metadata),
            "RepositoryIndex": (protocol.RepositoryIndexRequest, self._repository_index),
        }
        unary = self._guard.unary
        methods = {name: unary(name, self._reading(kind, answer)) for name, (kind, answer) in answers.items()}
        methods["ServerLive"] = unary("ServerLive", self._server_live, is_open=True)
        methods["ServerReady"] = unary("ServerReady", self._server_ready, is_open=True)
        methods["ModelInfer"] = unary("ModelInfer", self._model_infer)
        methods["ModelStreamInfer"] = self._guard.stream("ModelStreamInfer", self._model_stream_infer)
        return grpc.method_handlers_generic_handler(protocol.SERVICE, methods)

    # Calls.

    async def _model_infer(self, context: Any, caller: str) -> bytes:
        own = metadata.read(_pairs(context), caller)
        with self._budget.share() as share:
            call = await read_call(await share.read(context), self._max_message, share)
            async with running(self._asker, call, own, context.time_remaining(), is_stream=False) as ask:
                answer, end = await answer_once(ask, call, self._max_message)
        if len(answer) >= LARGE:
            self._budget.trim_soon()
        if end.is_replayed:
            context.set_trailing_metadata(statuses.REPLAYED)
        return answer

    async def _model_stream_infer(self, context: Any, caller: str) -> None:
        with self._counts.open_stream():
            own = metadata.read(_pairs(context), caller)
            await InferStream(context, self._asker, own, self._max_message, self._budget).serve()

    # Questions.

    def _reading(self, kind: Any, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, str], Awaitable[bytes]]:
        """Returns what reads a request, and gives the bytes of its answer."""

        async def handle(context: Any, caller: str) -> bytes:
            with self._budget.share() as share:
                request = await self._read(kind, context, share)
            message = await answer(request)
            serialized: bytes = message.SerializeToString()
            return serialized

        return handle

    async def _read(self, kind: Any, context: Any, share: MessageShare) -> Any:
        data = await share.read(context)
        share.resize(inflated_bytes(data, self._max_message))
        return await convert(most_bytes(data), parse, kind, data, self._max_message)

    async def _info(self, subject: str, model: str = "", version: str = "") -> dict[str, Any]:
        answer = await self._asker.info(subject, model, version)
        if isinstance(answer, AskEnd):
            raise statuses.StatusError(statuses.of_end(answer))
        return answer

    # Requests of these two say nothing, and anybody may send one of any length: they are not read.

    async def _server_live(self, context: Any, caller: str) -> bytes:
        await self._info("live")
        return bytes(protocol.ServerLiveResponse(live=True).SerializeToString())

    async def _server_ready(self, context: Any, caller: str) -> bytes:
        ready = (await self._info("ready"))["ready"]
        return bytes(protocol.ServerReadyResponse(ready=ready).SerializeToString())

    async def _model_ready(self, request: Any) -> Any:
        return protocol.ModelReadyResponse(
            ready=(await self._info("model_ready", request.name, request.version))["ready"]
        )

    async def _server_metadata(self, request: Any) -> Any:
        return protocol.ServerMetadataResponse(**await self._info("server"))

    async def _model_metadata(self, request: Any) -> Any:
        return protocol.ModelMetadataResponse(**await self._info("model", request.name, request.version))

    async def _repository_index(self, request: Any) -> Any:
        rows = (await self._info("index"))["models"]
        if request.ready:
            rows = [row for row in rows if row["state"] == "READY"]
        return protocol.RepositoryIndexResponse(models=rows)


def _pairs(context: Any) -> metadata.Pairs:
    pairs: metadata.Pairs = context.invocation_metadata()
    return pairs
