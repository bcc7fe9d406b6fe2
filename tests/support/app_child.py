"""A real worker child that runs an application, at the other end of real socket pairs, driven by hand."""

from __future__ import annotations

import itertools
import socket
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.setup import LogLine
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import (
    AskCancel,
    AskTaken,
    CallEnd,
    CallFailure,
    CallOutputs,
    CancelCall,
    ControlFromAppWorker,
    ControlToAppWorker,
    Heartbeat,
    InitApp,
    LaneFromAppWorker,
    LaneToAppWorker,
    Loaded,
    Registered,
    RunCall,
    StartFailed,
    StartPool,
    StopWorker,
    WireRequest,
    WorkerStopped,
)
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import Lanes, Log
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.wire.thread_channel import ThreadChannel
from corosrv.workers.worker.child.app_child import HEARTBEAT
from tests.support.worker_child import TIMEOUT, HandDrivenChild, timed

ControlChannel = ThreadChannel[ControlToAppWorker, ControlFromAppWorker]
LaneChannel = ThreadChannel[LaneToAppWorker, LaneFromAppWorker]

_numbers = itertools.count(1)


def number(name: str, *values: int) -> Tensor:
    return Tensor(name, "INT32", [len(values)], data=list(values))


def write_app(directory: Path, source: str, name: str = "the_app") -> str:
    """Writes a module with what every application needs on top; returns its reference."""
    head = "from corosrv.worker import *\napp = App('test')\n"
    (directory / f"{name}.py").write_text(head + textwrap.dedent(source))
    return f"{name}:app"


class Answer:
    """Everything that the worker said of one item of a call."""

    def __init__(self) -> None:
        self.logs = ""
        self.outputs: list[dict[str, Tensor]] = []
        self.parameters: list[dict[str, Any]] = []
        self.finals: list[bool] = []
        self.end: CallEnd | CallFailure | None = None

    @property
    def data(self) -> list[dict[str, list[Any]]]:
        return [{name: tensor.data for name, tensor in outputs.items()} for outputs in self.outputs]

    @property
    def failure(self) -> CallFailure:
        assert isinstance(self.end, CallFailure), f"it ended well, with {self.data}"
        return self.end

    @property
    def only(self) -> dict[str, list[Any]]:
        """The data of a call that gave one answer and ended well."""
        assert isinstance(self.end, CallEnd), self.end
        assert len(self.outputs) == 1
        return self.data[0]


class AppChildProcess(HandDrivenChild):
    """Runs an application, and gives the child a lane for each slot."""

    def __init__(
        self, reference: str, app_dir: Path, *, is_factory: bool = False, protocol: int | None = None, **env: str
    ) -> None:
        super().__init__("corosrv.workers.worker.app", env)
        self.control: ControlChannel = ThreadChannel(self.ours, StructCodec(ControlFromAppWorker, msgspec.msgpack))
        self.sockets: list[socket.socket] = []  # of the lanes
        self.handlers: list[HandlerCard] = []
        self.beats: list[Heartbeat] = []
        self.log = ""  # what was printed outside calls
        init = InitApp(reference, str(app_dir), is_factory, "default/0")
        self.control.send(init if protocol is None else msgspec.structs.replace(init, protocol=protocol))

    def hear_control(self) -> Any:
        """Returns the next message that is neither a log nor a heartbeat; None when the channel has ended."""
        n_beats = len(self.beats)
        while (len(self.beats) - n_beats) * HEARTBEAT < TIMEOUT:
            message = self.control.receive()
            if isinstance(message, Log):
                self.log += message.data
            elif isinstance(message, Heartbeat):
                self.beats.append(message)
            else:
                return message
        raise AssertionError("it says nothing but heartbeats")

    def next_beat(self) -> Heartbeat:
        """Returns a heartbeat that was sent after this call began: older ones may wait unread."""
        is_new = False
        while True:
            try:
                message = self.control.receive() if is_new else self.control.receive_nowait()
            except BlockingIOError:
                is_new = True
                continue
            assert not isinstance(message, WorkerStopped | None), message
            if isinstance(message, Heartbeat):
                self.beats.append(message)
                if is_new:
                    return message
            self.log += message.data if isinstance(message, Log) else ""

    def hear_failure(self) -> str:
        """Returns why it did not start."""
        message = self.hear_control()
        assert isinstance(message, StartFailed), message
        assert self.process.wait(TIMEOUT) == 1
        return message.error

    def load(self) -> Loaded:
        message = self.hear_control()
        assert isinstance(message, Loaded), message
        return message

    def start(self, pool: str = "default") -> Registered:
        """Lets it start a pool, and gives it the lanes."""
        self.load()
        self.control.send(StartPool(pool))
        message = self.hear_control()
        assert isinstance(message, Registered), message
        self.handlers = message.handlers
        groups = {card.group: card.concurrency for card in message.handlers}
        self.add_lanes(sum(groups.values()))
        return message

    def add_lanes(self, n_lanes: int) -> None:
        pairs = [socket.socketpair() for _ in range(n_lanes)]
        for ours, _ in pairs:
            self.sockets.append(timed(ours))
            codec: StructCodec[LaneToAppWorker, LaneFromAppWorker] = StructCodec(LaneFromAppWorker, msgspec.msgpack)
            self.lanes.append(ThreadChannel(ours, codec, takes_fds=True))
        try:
            self.control.send(Lanes(), [theirs.fileno() for _, theirs in pairs])
        finally:
            for _, theirs in pairs:
                theirs.close()

    def index(self, name: str) -> int:
        return next(number for number, card in enumerate(self.handlers) if card.name == name)

    def slot(self, name: str) -> int:
        """Returns the first slot of a handler's group."""
        group = self.handlers[self.index(name)].group
        return sum({card.group: card.concurrency for card in self.handlers if card.group < group}.values())

    def send(
        self,
        name: str,
        *batch: Sequence[Tensor],
        slot: int | None = None,
        id: int | None = None,
        seconds: float | None = None,
        parameters: dict[str, Any] | None = None,
        attempt: int = 1,
        stream: bool = False,
    ) -> int:
        """Hands over a call with the inputs of one request, or of several; returns its id."""
        id = next(_numbers) if id is None else id
        with TensorPacking() as packing:
            requests = [
                WireRequest(packing.pack(inputs), f"r{at}", parameters or {}) for at, inputs in enumerate(batch)
            ]
            message = RunCall(
                id,
                self.index(name),
                requests,
                [None if seconds is None else int(seconds * 1e6)] * len(batch),
                [f"request-{at}" for at in range(len(batch))],
                attempt,
                stream,
            )
            self.lanes[self.slot(name) if slot is None else slot].send(message, packing.fds())
        return id

    def hear_message(self, slot: int) -> LaneFromAppWorker:
        message = self.lanes[slot].receive()
        assert message is not None, "the lane has ended"
        return message

    def hear(self, slot: int = 0, n_items: int = 1, *, is_asking: bool = False) -> list[Answer]:
        """Everything to the ends of all items of a call."""
        answers = [Answer() for _ in range(n_items)]
        while any(answer.end is None for answer in answers):
            message = self.hear_message(slot)
            if isinstance(message, LogLine):
                answers[0].logs += message.data
                continue
            if is_asking and isinstance(message, AskTaken | AskCancel):
                continue
            assert isinstance(message, CallOutputs | CallEnd | CallFailure), message
            answer = answers[message.item]
            assert answer.end is None, "an item has one end, and nothing behind it"
            if isinstance(message, CallOutputs):
                ((*tensors,),) = unpack([message.outputs], self.lanes[slot].take_fds())
                answer.outputs.append({tensor.name: tensor for tensor in tensors})
                answer.parameters.append(dict(message.parameters))
                answer.finals.append(message.is_final)
            else:
                answer.end = message
        return answers

    def hear_rest(self, slot: int = 0) -> Answer:
        """Hears a call to its end, whatever it still says of its own calls."""
        return self.hear(slot, is_asking=True)[0]

    def call(self, name: str, *inputs: Tensor, slot: int | None = None, **options: Any) -> Answer:
        """Runs a call to its end."""
        slot = self.slot(name) if slot is None else slot
        self.send(name, inputs, slot=slot, **options)
        return self.hear(slot)[0]

    def cancel(self, id: int, slot: int = 0, item: int = -1, *, is_deadline: bool = False) -> None:
        self.control.send(CancelCall(slot, id, item, is_deadline))

    def await_log(self, text: str, slot: int = 0) -> None:
        """Reads until the call has printed this."""
        logs = ""
        while text not in logs:
            message = self.hear_message(slot)
            if isinstance(message, LogLine):
                logs += message.data

    def await_worker_log(self, text: str) -> None:
        """Reads control until this was printed outside calls."""
        while text not in self.log:
            message = self.control.receive()
            assert isinstance(message, Log | Heartbeat), message
            self.log += message.data if isinstance(message, Log) else ""

    def stop(self, grace_ms: float = 10_000.0) -> int:
        """Returns the exit status."""
        self.control.send(StopWorker(grace_ms))
        message = self.hear_control()
        assert isinstance(message, WorkerStopped), message
        return self.process.wait(TIMEOUT)
