"""The child's end of a slot's lane, on which calls come and over which a running call asks the server.

`LaneAsks` keeps what was asked, and the answers that have come. For handlers that are no coroutines several threads
wait on one lane: the slot's own, for its next call, and those that wait for answers; whichever waits first reads for
all (`LaneMail`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec.msgpack

from corosrv.base.errors import CallCancelled, CorosrvError
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire import calls, descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.worker.app.context import OutgoingCall
from corosrv.workers.worker.app.messages import EndSignal, ModelInferResponse
from corosrv.workers.worker.app.objects import ObjectReply, Objects
from corosrv.workers.worker.child.control import Drops, Ferry
from corosrv.workers.worker.child.run import SlotEnd

AppLane = SlotEnd[calls.LaneFromAppWorker, calls.LaneToAppWorker]


def make_lane(number: int, fd: int, ferry: Ferry, drops: Drops) -> AppLane:
    """Makes a lane of a descriptor that came from the server; `number`: of its slot."""
    codec: StructCodec[calls.LaneFromAppWorker, calls.LaneToAppWorker] = StructCodec(
        calls.LaneToAppWorker, msgspec.msgpack
    )
    return SlotEnd(number, fd, codec, ferry, drops, takes_fds=True)


MakeMessage = Callable[[int], calls.Ask | calls.ObjectAsk]  # of an ask, with its number
AskAnswer = tuple[
    calls.AskOutputs | calls.AskEnd | calls.ObjectAnswer, tuple[Tensor, ...], tuple[int, ...]
]  # with what came beside it


OVER = "the call is over, and what it asked for with it"  # why an ask has no answer any more


class OpenAsk:
    """Follows one ask whose answers are waited for."""

    def __init__(self, number: int, wake: Callable[[], object]) -> None:
        """`wake` is called with each answer, by whoever reads the lane."""
        self.number = number
        self.answers: deque[AskAnswer] = deque()
        self.wake = wake
        self.is_over = False  # no further answers come
        self.n_untold = 0  # outputs that were passed on, and the server does not know of yet


class LaneAsks:
    """Keeps the asks of the call that runs on a lane. Any thread.

    Numbers are used once in the life of a lane, so that an answer which comes late is known as such.
    """

    def __init__(self, lane: AppLane) -> None:
        self._lane = lane
        self._open: dict[int, OpenAsk] = {}
        self._n_opened = 0
        self._is_open = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._is_open = True

    def end(self) -> None:
        """Ends all asks with their call. The server ends them too, and must get no later message about them."""
        with self._lock:
            self._is_open = False
            ended, self._open = list(self._open.values()), {}
        for ask in ended:
            ask.is_over = True
            ask.wake()

    def cancel(self) -> None:
        """Asks the server to end all asks; they still get their ends. Never waits."""
        with self._lock:
            for number in self._open:
                self._lane.outbox.post(calls.AskCancel(number))

    def open(
        self, make_message: MakeMessage, fds: Sequence[int] = (), wake: Callable[[], object] = lambda: None
    ) -> OpenAsk:
        """Sends an ask, made with its number. Raises CallCancelled once the call is over, and what the codec raises."""
        with self._lock:
            if not self._is_open:
                raise CallCancelled("the call is over, so it can ask for nothing more")
            self._n_opened += 1
            ask = OpenAsk(self._n_opened, wake)
            self._lane.outbox.post(make_message(ask.number), fds=fds)
            self._open[ask.number] = ask
        return ask

    def deliver(self, message: calls.AskOutputs | calls.AskEnd | calls.ObjectAnswer, fds: tuple[int, ...]) -> None:
        """Hands an answer to its ask, which owns the descriptors then. Raises ProtocolError and InvalidTensor."""
        with self._lock:
            is_last = not isinstance(message, calls.AskOutputs)
            ask = self._open.pop(message.number, None) if is_last else self._open.get(message.number)
        if ask is None:  # nobody waits for it any more
            descriptors.close_all(fds)
            return
        tensors: tuple[Tensor, ...] = ()
        if isinstance(message, calls.AskOutputs):
            (tensors,) = unpack([message.outputs], fds, are_checked=True)
            fds = ()
        ask.answers.append((message, tensors, fds))
        ask.is_over = is_last
        ask.wake()

    def take(self, ask: OpenAsk) -> AskAnswer:
        """Takes an answer that has come, and lets the server send more."""
        answer = ask.answers.popleft()
        if isinstance(answer[0], calls.AskOutputs):
            ask.n_untold += 1
            if ask.n_untold >= calls.ASK_WINDOW // 2:
                self._tell_taken(ask)
        return answer

    def close(self, ask: OpenAsk) -> None:
        """Gives up the answers that have not come yet. Twice is harmless."""
        with self._lock:
            if self._open.pop(ask.number, None) is not None:
                self._lane.outbox.post(calls.AskCancel(ask.number))
        while ask.answers:
            descriptors.close_all(ask.answers.popleft()[2])

    def _tell_taken(self, ask: OpenAsk) -> None:
        with self._lock:
            if ask.number in self._open:
                self._lane.outbox.post(calls.AskTaken(ask.number, ask.n_untold))
        ask.n_untold = 0


@dataclass(frozen=True)
class AppSlot:
    """Belongs to the runner that serves the lane. Slots are numbered as their lanes."""

    lane: AppLane
    asks: LaneAsks
    make_caller: Callable[[EndSignal, str], Any]  # of the request with this id; its Caller or AsyncCaller

    @property
    def id(self) -> int:
        return self.lane.id


def open_call(
    open_ask: Callable[[MakeMessage, Sequence[int]], OpenAsk], call: OutgoingCall, signal: EndSignal, request_id: str
) -> OpenAsk:
    """Sends a call on behalf of a request. Raises what `signal` says, and what `open_ask` raises."""
    signal.check()
    with TensorPacking() as packing:
        inputs = packing.pack(call.inputs)
        outputs = None if call.outputs is None else list(call.outputs)
        request = calls.WireRequest(inputs, request_id, dict(call.parameters or {}), outputs)

        def make_message(number: int) -> calls.Ask:
            return calls.Ask(
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
    if isinstance(message, calls.AskOutputs):
        return ModelInferResponse(
            tensors, message.parameters, message.is_final, model_name=message.model, model_version=message.version
        )
    if message.fault is None:
        return None
    if signal.is_set:
        signal.check()
    raise message.fault.error()


Arrival = tuple[calls.RunCall, tuple[int, ...]]  # with its descriptors


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
        elif isinstance(message, calls.RunCall):
            self._calls.append((message, self._lane.take_fds()))
        else:
            self._asks.deliver(message, self._lane.take_fds())


class ThreadCaller:
    """Fulfils Caller for one request, in any thread of its handler."""

    def __init__(self, asks: LaneAsks, mail: LaneMail, signal: EndSignal, request_id: str) -> None:
        self._asks = asks
        self._mail = mail
        self._signal = signal
        self._request_id = request_id

    @property
    def objects(self) -> Objects:
        return Objects(self._ask)

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        ask = open_call(self._open, call, self._signal, self._request_id)
        return self._answers(ask)

    def _answers(self, ask: OpenAsk) -> Iterator[ModelInferResponse]:
        try:
            while (response := response_of(self._next_answer(ask), self._signal)) is not None:
                yield response
        finally:
            self._asks.close(ask)

    def _open(self, make_message: MakeMessage, fds: Sequence[int]) -> OpenAsk:
        return self._asks.open(make_message, fds, self._mail.wake)

    def _next_answer(self, ask: OpenAsk) -> AskAnswer:
        """Waits for the next answer. Raises CallCancelled once the handler's own call is over."""
        answer = self._mail.next_answer(ask)
        if answer is None:
            raise CallCancelled(OVER)
        return answer

    def _ask(self, make_message: MakeMessage, fds: Sequence[int]) -> ObjectReply:
        """Asks for an object, and waits for the answer. Raises what LaneAsks.open and _next_answer() raise."""
        message, _, answer_fds = self._next_answer(self._open(make_message, fds))
        assert isinstance(message, calls.ObjectAnswer), "nothing else answers it"
        return message, answer_fds
