"""Makes the calls of coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from corosrv.base.errors import CallCancelled
from corosrv.workers.wire.calls import ObjectAnswer
from corosrv.workers.worker.app.asking import OutgoingCall
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, ObjectReply
from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.child.apps.call_messages import open_call, response_of
from corosrv.workers.worker.child.apps.lane_asks import AskAnswer, LaneAsks, MakeMessage, OpenAsk


class LoopExchange:
    """Asks the server over a lane, and waits for its answers. Belongs to the loop's thread."""

    def __init__(self, asks: LaneAsks) -> None:
        self._asks = asks

    def open(self, make_message: MakeMessage, fds: Sequence[int] = ()) -> OpenAsk:
        """Sends an ask. Raises CallCancelled once the handler's own call is over, and what the codec raises."""
        return self._asks.open(make_message, fds)

    async def next_answer(self, ask: OpenAsk) -> AskAnswer:
        """Waits for the next answer. Raises CallCancelled once the handler's own call is over."""
        while not ask.answers:
            if ask.is_over:
                raise CallCancelled("the call is over, and what it asked for with it")
            has_news = asyncio.Event()
            ask.wake = has_news.set
            await has_news.wait()
        return self._asks.take(ask)

    async def ask(self, make_message: MakeMessage, fds: Sequence[int] = ()) -> ObjectReply:
        """Asks for an object, and waits for the answer. Raises what open() and next_answer() raise."""
        ask = self.open(make_message, fds)
        try:
            message, _, answer_fds = await self.next_answer(ask)
        finally:
            self.close(ask)
        assert isinstance(message, ObjectAnswer), "nothing else answers it"
        return message, answer_fds

    def close(self, ask: OpenAsk) -> None:
        """Gives up the answers that have not come yet. Twice is harmless."""
        self._asks.close(ask)


class LoopCaller:
    """Fulfils AsyncCaller for one request."""

    def __init__(self, exchange: LoopExchange, signal: EndSignal, request_id: str) -> None:
        self._exchange = exchange
        self._signal = signal
        self._request_id = request_id

    @property
    def objects(self) -> AsyncObjects:
        return AsyncObjects(self._exchange.ask)

    def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        ask = open_call(self._exchange.open, call, self._signal, self._request_id)
        return self._answers(ask)

    async def _answers(self, ask: OpenAsk) -> AsyncIterator[ModelInferResponse]:
        try:
            while (response := response_of(await self._exchange.next_answer(ask), self._signal)) is not None:
                yield response
        finally:
            self._exchange.close(ask)
