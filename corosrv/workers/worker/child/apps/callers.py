"""Makes the calls of handlers that are no coroutines: a message to the server over the slot's lane, and its answers.

Several threads wait on one lane: the slot's own, for its next call, and those that wait for answers. Whichever waits
first reads for all (`LaneMail`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from corosrv.base.errors import CallCancelled, CorosrvError
from corosrv.workers.wire.calls import Ask, AskOutputs, ObjectAnswer, RunCall, WireRequest
from corosrv.workers.wire.tensors import TensorPacking
from corosrv.workers.worker.app.context import OutgoingCall
from corosrv.workers.worker.app.messages import EndSignal, ModelInferResponse
from corosrv.workers.worker.app.objects import ObjectReply, Objects
from corosrv.workers.worker.child.apps.lane_asks import AppLane, AskAnswer, LaneAsks, MakeMessage, OpenAsk


def open_call(
    open_ask: Callable[[MakeMessage, Sequence[int]], OpenAsk], call: OutgoingCall, signal: EndSignal, request_id: str
) -> OpenAsk:
    """Sends a call on behalf of a request. Raises what `signal` says, and what `open_ask` raises."""
    signal.check()
    with TensorPacking() as packing:
        inputs = packing.pack(call.inputs)
        outputs = None if call.outputs is None else list(call.outputs)
        request = WireRequest(inputs, request_id, dict(call.parameters or {}), outputs)

        def make_message(number: int) -> Ask:
            return Ask(
                number,
                request,
                call.model,
                call.version,
                None if call.capability is None else dict(call.capability),
                dict(call.prefer or {}),
                call.is_fuzzy,
                call.stream,
                _budget_us(call, signal),
                call.priority or 0,
                request_id,
            )

        return open_ask(make_message, packing.fds())


def _budget_us(call: OutgoingCall, signal: EndSignal) -> int | None:
    """Returns the microseconds that a call may take: its own limit, and what its request has left."""
    seconds = signal.remaining()
    if call.timeout_ms is not None:
        own_seconds = max(0.0, call.timeout_ms / 1000)
        seconds = own_seconds if seconds is None else min(seconds, own_seconds)
    return None if seconds is None else int(seconds * 1e6)


def response_of(answer: AskAnswer, signal: EndSignal) -> ModelInferResponse | None:
    """Returns an answer to a call; None if it has ended well. Raises why it has not, or why nobody wants it."""
    message, tensors, _ = answer
    if isinstance(message, AskOutputs):
        return ModelInferResponse(
            tensors, message.parameters, message.is_final, model_name=message.model, model_version=message.version
        )
    if message.fault is None:
        return None
    if signal.is_set:
        signal.check()
    raise message.fault.error()


Arrival = tuple[RunCall, tuple[int, ...]]  # with its descriptors


class LaneMail:
    """Receives the messages of a lane. Whichever thread waits first reads for all; no thread is kept for that."""

    def __init__(self, lane: AppLane, asks: LaneAsks) -> None:
        self._lane = lane
        self._asks = asks
        self._calls: deque[Arrival] = deque()
        self._has_reader = False
        self._has_ended = False
        self._fault: CorosrvError | None = None
        self._changed = threading.Condition()

    def next_call(self) -> Arrival | None:
        """Returns the next call; None when no more come. Waits. Raises BadFrame, ProtocolError and InvalidTensor."""
        self._wait_until(lambda: bool(self._calls))
        if self._calls:
            return self._calls.popleft()
        if self._fault is not None:
            raise self._fault
        return None

    def next_answer(self, ask: OpenAsk) -> AskAnswer | None:
        """Returns the next answer to an ask; None once its call or the lane is over. Waits."""
        self._wait_until(lambda: bool(ask.answers) or ask.is_over)
        return self._asks.take(ask) if ask.answers else None

    def wake(self) -> None:
        """Wakes all threads that wait, to check again what they wait for."""
        with self._changed:
            self._changed.notify_all()

    def _wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Waits until it is so, or the lane has ended."""
        with self._changed:
            while not is_ready() and not self._has_ended:
                if self._has_reader:
                    self._changed.wait()
                else:
                    self._read_for_all()

    def _read_for_all(self) -> None:
        self._has_reader = True
        self._changed.release()
        try:
            self._read()
        except CorosrvError as fault:
            self._fault = fault
            self._has_ended = True
        finally:
            self._changed.acquire()
            self._has_reader = False
            self._changed.notify_all()

    def _read(self) -> None:
        message = self._lane.receive()
        if message is None:
            self._has_ended = True
        elif isinstance(message, RunCall):
            self._calls.append((message, self._lane.take_fds()))
        else:
            self._asks.deliver(message, self._lane.take_fds())


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
