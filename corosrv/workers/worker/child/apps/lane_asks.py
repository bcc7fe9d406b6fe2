"""The child's end of a slot's lane, on which calls come and over which a running call asks the server.

`LaneAsks` keeps what was asked, and the answers that have come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec.msgpack

from corosrv.base.errors import CallCancelled
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import (
    ASK_WINDOW,
    Ask,
    AskCancel,
    AskEnd,
    AskOutputs,
    AskTaken,
    LaneFromAppWorker,
    LaneToAppWorker,
    ObjectAnswer,
    ObjectAsk,
)
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.tensors import unpack
from corosrv.workers.worker.app.messages import EndSignal
from corosrv.workers.worker.child.control import Drops, Ferry
from corosrv.workers.worker.child.run import SlotEnd

AppLane = SlotEnd[LaneFromAppWorker, LaneToAppWorker]


def make_lane(number: int, fd: int, ferry: Ferry, drops: Drops) -> AppLane:
    """Makes a lane of a descriptor that came from the server; `number`: of its slot."""
    codec: StructCodec[LaneFromAppWorker, LaneToAppWorker] = StructCodec(LaneToAppWorker, msgspec.msgpack)
    return SlotEnd(number, fd, codec, ferry, drops, takes_fds=True)


MakeMessage = Callable[[int], Ask | ObjectAsk]  # of an ask, with its number
AskAnswer = tuple[AskOutputs | AskEnd | ObjectAnswer, tuple[Tensor, ...], tuple[int, ...]]  # with what came beside it


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
        """Allows asks, as a call begins."""
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
                self._lane.outbox.post(AskCancel(number))

    def open(
        self,
        make_message: MakeMessage,
        fds: Sequence[int] = (),
        wake: Callable[[], object] = lambda: None,
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

    def deliver(self, message: AskOutputs | AskEnd | ObjectAnswer, fds: tuple[int, ...]) -> None:
        """Hands an answer to its ask, which owns the descriptors then. Raises ProtocolError and InvalidTensor."""
        with self._lock:
            is_last = not isinstance(message, AskOutputs)
            ask = self._open.pop(message.number, None) if is_last else self._open.get(message.number)
        if ask is None:  # nobody waits for it any more
            descriptors.close_all(fds)
            return
        tensors: tuple[Tensor, ...] = ()
        if isinstance(message, AskOutputs):
            (tensors,) = unpack([message.outputs], fds, are_checked=True)
            fds = ()
        ask.answers.append((message, tensors, fds))
        ask.is_over = is_last
        ask.wake()

    def take(self, ask: OpenAsk) -> AskAnswer:
        """Takes an answer that has come, and lets the server send more."""
        answer = ask.answers.popleft()
        if isinstance(answer[0], AskOutputs):
            ask.n_untold += 1
            if ask.n_untold >= ASK_WINDOW // 2:
                self._tell_taken(ask)
        return answer

    def close(self, ask: OpenAsk) -> None:
        """Gives up the answers that have not come yet. Twice is harmless."""
        with self._lock:
            if self._open.pop(ask.number, None) is not None:
                self._lane.outbox.post(AskCancel(ask.number))
        while ask.answers:
            descriptors.close_all(ask.answers.popleft()[2])

    def _tell_taken(self, ask: OpenAsk) -> None:
        with self._lock:
            if ask.number in self._open:
                self._lane.outbox.post(AskTaken(ask.number, ask.n_untold))
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
