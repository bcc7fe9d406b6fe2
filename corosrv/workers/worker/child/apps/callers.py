"""Makes the calls of handlers that are no coroutines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corosrv.base.errors import CallCancelled
from corosrv.workers.wire.calls import ObjectAnswer
from corosrv.workers.worker.app.asking import OutgoingCall
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.objects import ObjectReply, Objects
from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.child.apps.call_messages import open_call, response_of
from corosrv.workers.worker.child.apps.lane_asks import AskAnswer, LaneAsks, MakeMessage, OpenAsk
from corosrv.workers.worker.child.apps.lane_mail import LaneMail


class ThreadExchange:
    """Asks the server over a lane, and waits for its answers. Any thread of a handler."""

    def __init__(self, asks: LaneAsks, mail: LaneMail) -> None:
        self._asks = asks
        self._mail = mail

    def open(self, make_message: MakeMessage, fds: Sequence[int] = ()) -> OpenAsk:
        """Sends an ask. Raises CallCancelled once the handler's own call is over, and what the codec raises."""
        return self._asks.open(make_message, fds, self._mail.wake)

    def next_answer(self, ask: OpenAsk) -> AskAnswer:
        """Waits for the next answer. Raises CallCancelled once the handler's own call is over."""
        answer = self._mail.next_answer(ask)
        if answer is None:
            raise CallCancelled("the call is over, and what it asked for with it")
        return answer

    def ask(self, make_message: MakeMessage, fds: Sequence[int] = ()) -> ObjectReply:
        """Asks for an object, and waits for the answer. Raises what open() and next_answer() raise."""
        message, _, answer_fds = self.next_answer(self.open(make_message, fds))
        assert isinstance(message, ObjectAnswer), "nothing else answers it"
        return message, answer_fds

    def close(self, ask: OpenAsk) -> None:
        """Gives up the answers that have not come yet. Twice is harmless."""
        self._asks.close(ask)


class ThreadCaller:
    """Fulfils Caller for one request."""

    def __init__(self, exchange: ThreadExchange, signal: EndSignal, request_id: str) -> None:
        self._exchange = exchange
        self._signal = signal
        self._request_id = request_id

    @property
    def objects(self) -> Objects:
        return Objects(self._exchange.ask)

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        ask = open_call(self._exchange.open, call, self._signal, self._request_id)
        return self._answers(ask)

    def _answers(self, ask: OpenAsk) -> Iterator[ModelInferResponse]:
        try:
            while (response := response_of(self._exchange.next_answer(ask), self._signal)) is not None:
                yield response
        finally:
            self._exchange.close(ask)
