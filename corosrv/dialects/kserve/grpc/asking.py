"""Asks as the gRPC process makes them: thousands at once over its one lane, told apart by their numbers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.base.errors import ChannelClosed, CorosrvError, WorkerLost
from corosrv.dialects.kserve.grpc.messages import AskInfo, InfoAnswer, LaneFromGrpc, LaneToGrpc
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.aio_channel import AioChannel
from corosrv.workers.wire.calls import ASK_WINDOW, Ask, AskCancel, AskEnd, AskOutputs, AskTaken, WireTensor
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import TensorPacking, unpack

LONG_COPY = 4 << 20  # bytes whose copying is left to a thread


@dataclass(frozen=True, slots=True)
class Outputs:
    """One answer of a call, with its tensors taken out of the message."""

    message: AskOutputs
    tensors: tuple[Tensor, ...]


class RunningAsk:
    """One call from its ask to its end. Leaving its `with` block cancels it unless it has ended."""

    def __init__(
        self, number: int, send: Callable[[AskCancel | AskTaken], None], forget: Callable[[int], None]
    ) -> None:
        self.number = number
        self._send = send
        self._forget = forget
        self._items: deque[Outputs | AskEnd] = deque()
        self._news: asyncio.Future[None] | None = None  # while receive() waits
        self._n_passed_on = 0  # since the server was last told of it
        self._is_over = False

    def __enter__(self) -> RunningAsk:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    async def receive(self) -> Outputs | AskEnd:
        """Returns the next answer, or how the call ended. One task at a time waits here."""
        while not self._items:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        item = self._items.popleft()
        self._is_over = isinstance(item, AskEnd)
        return item

    def add(self, item: Outputs | AskEnd) -> None:
        """Adds what the server sent."""
        self._items.append(item)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def pass_on(self) -> None:
        """Records that an answer has gone to the client, which makes room for another one."""
        self._n_passed_on += 1
        if self._n_passed_on >= ASK_WINDOW // 2:
            self._send(AskTaken(self.number, self._n_passed_on))
            self._n_passed_on = 0

    def cancel(self) -> None:
        """Cancels the call unless it has ended; its answers are not waited for."""
        if not self._is_over:
            self._is_over = True
            self._forget(self.number)
            self._send(AskCancel(self.number))


class Asker:
    """Owns the lane. Belongs to one event loop."""

    def __init__(self, sock: socket.socket, on_end: Callable[[str], None]) -> None:
        """Calls `on_end` with the reason when the lane has ended; all calls have ended by then."""
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._running: dict[int, RunningAsk] = {}
        self._infos: dict[int, asyncio.Future[dict[str, Any] | AskEnd]] = {}
        codec: StructCodec[LaneFromGrpc, LaneToGrpc] = StructCodec(LaneToGrpc, msgspec.msgpack)
        self._channel: AioChannel[LaneFromGrpc, LaneToGrpc] = AioChannel(
            sock, codec, self._on_message, self._on_lane_end
        )

    @property
    def n_running(self) -> int:
        return len(self._running)

    async def begin(self, inputs: tuple[Tensor, ...], make_ask: Callable[[int, list[WireTensor]], Ask]) -> RunningAsk:
        """Sends an ask. Waits while the server does not read.

        Raises FrameTooLarge for too many or too long names and parameters, ChannelClosed, and OSError.
        """
        await self._channel.wait_until_sent()
        number = next(self._numbers)
        with TensorPacking() as packing:
            message = make_ask(number, packing.pack(inputs))
            fds = await asyncio.to_thread(packing.fds) if packing.n_attached >= LONG_COPY else packing.fds()
            running = RunningAsk(number, self._send, self._forget)
            self._running[number] = running
            try:
                self._channel.send(message, fds)
            except CorosrvError:
                self._forget(number)
                raise
        return running

    async def info(self, subject: str, model: str = "", version: str = "", caller: str = "") -> dict[str, Any] | AskEnd:
        """Returns what the server answers to AskInfo: a body, or an error. Raises ChannelClosed."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any] | AskEnd] = asyncio.get_running_loop().create_future()
        self._infos[number] = answer
        try:
            self._channel.send(AskInfo(number, subject, model, version, caller))
            return await answer
        finally:
            del self._infos[number]

    def close(self) -> None:
        """Closes the lane: the server cancels what still runs."""
        self._channel.close()

    def _send(self, message: AskCancel | AskTaken) -> None:
        with contextlib.suppress(ChannelClosed):  # then nothing runs any more
            self._channel.send(message)

    def _forget(self, number: int) -> None:
        self._running.pop(number, None)

    def _on_message(self, message: LaneToGrpc, fds: tuple[int, ...]) -> None:
        if isinstance(message, AskOutputs) and message.number in self._running:
            (tensors,) = unpack([message.outputs], fds, are_checked=True)
            self._running[message.number].add(Outputs(message, tensors))
            return
        descriptors.close_all(fds)
        if isinstance(message, AskEnd):
            self._on_ask_end(message)
        elif isinstance(message, InfoAnswer):
            self._answer_info(message.number, message.body)

    def _on_ask_end(self, end: AskEnd) -> None:
        if (running := self._running.pop(end.number, None)) is not None:
            running.add(end)
        else:
            self._answer_info(end.number, end)

    def _answer_info(self, number: int, answer: dict[str, Any] | AskEnd) -> None:
        if (waiting := self._infos.get(number)) is not None and not waiting.done():
            waiting.set_result(answer)

    def abandon(self, reason: str) -> None:
        """Ends all calls as lost, for their handlers may have run. The server cancels them when the lane is closed."""
        for number in list(self._running):
            self._lose(number, reason)

    def _lose(self, number: int, reason: str) -> None:
        self._on_ask_end(AskEnd(number, fault=Fault.from_error(WorkerLost(reason))))

    def _on_lane_end(self, reason: str) -> None:
        for number in [*self._running, *self._infos]:
            self._lose(number, "the server was lost")
        self._on_end(reason)
