"""An app worker that speaks the messages of calls, and breaks them on demand, as one that behaves cannot.

Runs in place of `python -m corosrv.workers.worker.app`. What it does until it has registered, InitApp.app_ref says,
`NAME` or `NAME:ARGUMENT`; what it does in a call, the parameter `do` of its first request. It has two pools: `default`,
of two groups of 2 and 1 slots, and `other` of one slot.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.setup import LogLine
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.workers.wire import calls as m
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.wire.thread_channel import ThreadChannel

COMMAND = (sys.executable, "-m", "tests.workers.worker.app_children.scripted")
HEARTBEAT = 0.05  # seconds

GARBAGE = b"\x00\x00\x00\x05hello"
HALF_A_FRAME = b"\x00\x00\x00\x09{"
TOO_LARGE = b"\x7f\xff\xff\xff{"
UNKNOWN = b"\x00\x00\x00\x0e" + msgspec.msgpack.encode({"type": "weather"})

SPEC = TensorSpec("x", "INT32", [-1])
POOLS = [
    m.PoolCard(
        "default",
        [
            HandlerCard("first", inputs=[SPEC], outputs=[SPEC], group=0, concurrency=2),
            HandlerCard("second", group=1),
            HandlerCard("third", group=0, concurrency=2, is_stream=True),
        ],
    ),
    m.PoolCard("other", [HandlerCard("counter")], min_workers=1, max_workers=2),
]


def pause() -> None:
    """Waits for ever, whatever signals arrive and are survived."""
    while True:
        signal.pause()


class ScriptedApp:
    """The control channel, and a thread for each lane and for the heartbeat."""

    def __init__(self, control_fd: int) -> None:
        self.control: ThreadChannel[Any, Any] = ThreadChannel.inherited(
            control_fd, StructCodec(m.ControlToAppWorker, msgspec.msgpack), takes_fds=True
        )
        self.lanes: list[ThreadChannel[Any, Any]] = []
        self.cancels: dict[int, list[m.CancelCall]] = {}
        self.has_news = threading.Condition()
        self.beats = True
        self.stops = True
        self.survives_server = False
        self.pool = ""
        self.worker_id = ""

    def run(self) -> None:
        init = self.control.receive()
        self.worker_id = init.worker_id
        name, _, argument = init.app_ref.partition(":")
        STARTS[name](self, argument)
        while (message := self.control.receive()) is not None:
            match message:
                case m.Lanes():
                    self._add_lanes(self.control.take_fds())
                case m.CancelCall():
                    with self.has_news:
                        self.cancels.setdefault(message.id, []).append(message)
                        self.has_news.notify_all()
                case m.StopWorker():
                    if not self.stops:
                        pause()
                    self.control.send(m.Log("stdout", f"on_stop has {message.grace_ms:g} ms\n"))
                    self.control.send(m.WorkerStopped())
                    os._exit(0)
        if self.survives_server:
            pause()
        os._exit(0)

    def load(self, pools: list[m.PoolCard] | None = None) -> None:
        self.control.send(m.Loaded(POOLS if pools is None else pools))

    def register(self) -> None:
        """Waits for its pool and registers what was announced."""
        start = self.control.receive()
        if isinstance(start, m.StopWorker):
            self.control.send(m.WorkerStopped())
            os._exit(0)
        self.pool, self.worker_id = start.pool, start.worker_id
        self.control.send(m.Registered(next(pool.handlers for pool in POOLS if pool.name == start.pool)))

    def start_heartbeat(self) -> None:
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            if self.beats:
                self.control.send(m.Heartbeat(0, 4096))
            time.sleep(HEARTBEAT)

    def _add_lanes(self, fds: tuple[int, ...]) -> None:
        codec: Any = StructCodec(m.LaneToAppWorker, msgspec.msgpack)
        for fd in fds:
            self.lanes.append(ThreadChannel.inherited(fd, codec, takes_fds=True))
            threading.Thread(target=self._serve, args=(len(self.lanes) - 1,), daemon=True).start()

    def _serve(self, slot: int) -> None:
        lane = self.lanes[slot]
        while (message := lane.receive()) is not None:
            if isinstance(message, m.RunCall):
                call = ScriptedCall(self, slot, message)
                CALLS[str(message.requests[0].parameters.get("do", "echo"))](call)


class ScriptedCall:
    """One call or batch. What it does ends its items itself."""

    def __init__(self, app: ScriptedApp, slot: int, message: m.RunCall) -> None:
        self.app = app
        self.slot = slot
        self.lane = app.lanes[slot]
        self.id = message.id
        self.message = message
        self.inputs = unpack([request.inputs for request in message.requests], self.lane.take_fds())
        self.parameters: dict[str, Any] = message.requests[0].parameters

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.lane.send(message)

    def log(self, text: str) -> None:
        self.send(LogLine("stdout", text))

    def give(self, *tensors: Tensor, item: int = 0, is_final: bool = False, **parameters: Any) -> None:
        with TensorPacking() as packing:
            wire = packing.pack(tensors)
            self.lane.send(m.CallOutputs(self.id, wire, parameters, is_final, item), packing.fds())

    def end(self) -> None:
        """Ends every item well."""
        self.send(*(m.CallEnd(self.id, item) for item in range(len(self.inputs))))

    def wait_for_cancels(self, n: int = 1) -> list[m.CancelCall]:
        with self.app.has_news:
            self.app.has_news.wait_for(lambda: len(self.app.cancels.get(self.id, [])) >= n)
            return self.app.cancels[self.id]


STARTS: dict[str, Callable[[ScriptedApp, str], None]] = {}
CALLS: dict[str, Callable[[ScriptedCall], None]] = {}


def start(function: Callable[[ScriptedApp, str], None]) -> Callable[[ScriptedApp, str], None]:
    STARTS[function.__name__] = function
    return function


def call(function: Callable[[ScriptedCall], None]) -> Callable[[ScriptedCall], None]:
    CALLS[function.__name__] = function
    return function


# Until it has registered.


@start
def well(app: ScriptedApp, text: str) -> None:
    app.control.send(m.Log("stdout", "imported\n"))
    app.load()
    app.register()
    app.start_heartbeat()


@start
def never_stops(app: ScriptedApp, text: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    app.stops = False
    well(app, text)


@start
def hangs(app: ScriptedApp, text: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    app.control.send(m.Log("stderr", "so far\n"))
    pause()


@start
def hangs_in_on_start(app: ScriptedApp, text: str) -> None:
    app.load()
    pause()


@start
def fails(app: ScriptedApp, text: str) -> None:
    app.control.send(m.Log("stderr", "Traceback\n"))
    app.control.send(m.StartFailed(text))
    os._exit(1)


@start
def fails_in_on_start(app: ScriptedApp, text: str) -> None:
    app.load()
    app.control.receive()
    app.control.send(m.StartFailed(text))
    os._exit(1)


@start
def exits(app: ScriptedApp, code: str) -> None:
    os._exit(int(code))


@start
def exits_in_on_start(app: ScriptedApp, code: str) -> None:
    app.load()
    app.control.receive()
    os._exit(int(code))


@start
def writes(app: ScriptedApp, what: str) -> None:
    os.write(app.control.fileno(), globals()[what])
    if what != "UNKNOWN":
        pause()
    well(app, "")


@start
def closes_control(app: ScriptedApp, text: str) -> None:
    app.control.close()
    pause()


@start
def speaks_protocol(app: ScriptedApp, number: str) -> None:
    app.control.send(m.Loaded(POOLS, int(number)))
    pause()


@start
def loads(app: ScriptedApp, pools: str) -> None:
    """Announces the pools of the argument, which is JSON."""
    app.control.send(m.Loaded(msgspec.json.decode(pools, type=list[m.PoolCard])))
    pause()


@start
def loads_raw(app: ScriptedApp, pools: str) -> None:
    """Announces what no PoolCard can say."""
    data = msgspec.msgpack.encode({"type": "loaded", "pools": msgspec.json.decode(pools)})
    os.write(app.control.fileno(), len(data).to_bytes(4, "big") + data)
    pause()


@start
def loads_twice(app: ScriptedApp, text: str) -> None:
    app.load()
    app.load()
    pause()


@start
def registers(app: ScriptedApp, handlers: str) -> None:
    app.load()
    app.control.receive()
    app.control.send(m.Registered(msgspec.json.decode(handlers, type=list[HandlerCard])))
    pause()


@start
def registers_unasked(app: ScriptedApp, text: str) -> None:
    app.control.send(m.Registered(POOLS[0].handlers))
    pause()


@start
def registers_twice(app: ScriptedApp, text: str) -> None:
    well(app, text)
    app.control.send(m.Registered(POOLS[0].handlers))


@start
def loses_a_slot(app: ScriptedApp, slot: str) -> None:
    well(app, "")
    app.control.send(m.SlotFailed(int(slot), "the slot is torn"))


@start
def prints_a_flood(app: ScriptedApp, n_lines: str) -> None:
    well(app, "")
    app.control.send(m.Log("stdout", "flood\n" * int(n_lines)))
    app.control.send(m.Log("stdout", "dry\n"))


@start
def is_stopped(app: ScriptedApp, text: str) -> None:
    app.load()
    os.kill(os.getpid(), signal.SIGSTOP)
    app.register()
    app.start_heartbeat()


# In a call.


@call
def echo(call: ScriptedCall) -> None:
    for item, inputs in enumerate(call.inputs):
        call.give(*inputs, item=item)
    call.end()


@call
def tell(call: ScriptedCall) -> None:
    """Answers with what the worker was told."""
    message = call.message
    call.give(
        handler=message.handler,
        attempt=message.attempt,
        stream=message.stream,
        budgets=str(message.budget_us),
        requests=",".join(message.request_ids),
        ids=",".join(request.id for request in message.requests),
        outputs=str(message.requests[0].outputs),
        slot=call.slot,
        worker=call.app.worker_id,
        pool=call.app.pool,
        pid=os.getpid(),
    )
    call.end()


@call
def stream(call: ScriptedCall) -> None:
    n, size = call.parameters["n"], call.parameters.get("size", 1)
    for number in range(n):
        call.give(Tensor("x", "UINT8", [size], raw=bytes(size)), number=number, is_final=number == n - 1)
    call.end()


@call
def print_lines(call: ScriptedCall) -> None:
    call.log("one\ntwo\n")
    call.end()


@call
def print_after_the_end(call: ScriptedCall) -> None:
    call.end()
    call.send(LogLine("stdout", "late\n"), m.AskTaken(1, 1), m.AskCancel(1))


@call
def fail(call: ScriptedCall) -> None:
    for item in range(len(call.inputs)):
        call.send(m.CallFailure(call.id, call.parameters["kind"], call.parameters["message"], item))


@call
def wait_for_cancel(call: ScriptedCall) -> None:
    """Ends each item when it is cancelled, and says how."""
    call.give(waits=True)
    for number in range(1, len(call.inputs) + 1):
        cancel = call.wait_for_cancels(number)[number - 1]
        kind = "deadline" if cancel.is_deadline else "cancelled"
        if cancel.item < 0:
            call.send(*(m.CallFailure(call.id, kind, "", item) for item in range(len(call.inputs))))
            return
        call.send(m.CallFailure(call.id, kind, "", cancel.item))


@call
def hang(call: ScriptedCall) -> None:
    call.give(waits=True)
    threading.Event().wait()


@call
def end_later(call: ScriptedCall) -> None:
    """Ends well some seconds after its cancel."""
    call.give(waits=True)
    call.wait_for_cancels()
    time.sleep(call.parameters["seconds"])
    call.end()


@call
def die(call: ScriptedCall) -> None:
    call.give(waits=True)
    os.kill(os.getpid(), call.parameters["signal"])


@call
def exit(call: ScriptedCall) -> None:
    os._exit(call.parameters["code"])


@call
def end_and_exit(call: ScriptedCall) -> None:
    call.end()
    os._exit(0)


@call
def exit_in_a_frame(call: ScriptedCall) -> None:
    os.write(call.lane.fileno(), HALF_A_FRAME)
    os._exit(1)


@call
def abort(call: ScriptedCall) -> None:
    call.app.control.send(m.Fatal("out of cheese"))
    os.abort()


@call
def stop_beating(call: ScriptedCall) -> None:
    call.app.beats = False
    call.end()


@call
def write(call: ScriptedCall) -> None:
    os.write(call.lane.fileno(), globals()[call.parameters["what"]])
    call.end() if call.parameters["what"] == "UNKNOWN" else threading.Event().wait()


@call
def write_to_control(call: ScriptedCall) -> None:
    os.write(call.app.control.fileno(), globals()[call.parameters["what"]])
    threading.Event().wait()


@call
def close_lane(call: ScriptedCall) -> None:
    call.lane.close()
    threading.Event().wait()


@call
def close_control(call: ScriptedCall) -> None:
    call.app.survives_server = True
    call.app.control.close()
    threading.Event().wait()


@call
def end_another(call: ScriptedCall) -> None:
    call.send(m.CallEnd(call.id + 1))


@call
def end_twice(call: ScriptedCall) -> None:
    call.end()
    call.end()


@call
def end_an_item_twice(call: ScriptedCall) -> None:
    call.send(m.CallEnd(call.id, 0), m.CallEnd(call.id, 0))


@call
def end_no_item(call: ScriptedCall) -> None:
    call.send(m.CallEnd(call.id, call.parameters["item"]))


@call
def fail_in_a_new_way(call: ScriptedCall) -> None:
    call.send(m.CallFailure(call.id, "melancholy", ""))


@call
def answer_after_the_end(call: ScriptedCall) -> None:
    call.end()
    call.give()


@call
def give_no_tensor(call: ScriptedCall) -> None:
    """Gives an output whose content does not fit its shape, goes on, and ends well once it is cancelled."""
    call.send(m.CallOutputs(call.id, [m.WireTensor("x", "INT32", [2], b"abc")]))
    call.give(late=True)
    call.wait_for_cancels()
    call.end()


def give_attached(call: ScriptedCall, n_announced: int, fds: list[int]) -> None:
    call.lane.send(m.CallOutputs(call.id, [m.WireTensor("x", "UINT8", [n_announced], n_attached=n_announced)]), fds)
    for fd in fds:
        os.close(fd)
    threading.Event().wait()


@call
def lie_about_size(call: ScriptedCall) -> None:
    give_attached(call, 5, [descriptors.make([b"four"])])


@call
def attach_nothing(call: ScriptedCall) -> None:
    give_attached(call, 4, [])


@call
def attach_twice(call: ScriptedCall) -> None:
    give_attached(call, 4, [descriptors.make([b"four"]), descriptors.make([b"four"])])


@call
def attach_unsealed(call: ScriptedCall) -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.write(fd, b"four")
    give_attached(call, 4, [fd])


@call
def attach_a_pipe(call: ScriptedCall) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    give_attached(call, 4, [reading])


@call
def attach_to_an_end(call: ScriptedCall) -> None:
    """Sends a descriptor beside a message that has none, which does no harm."""
    fd = descriptors.make([b"four"])
    call.lane.send(m.CallEnd(call.id), [fd])
    os.close(fd)


@call
def ask(call: ScriptedCall) -> None:
    """Asks another model, and answers with how that ended."""
    call.send(m.Ask(1, m.WireRequest(), model=call.parameters["model"], budget_us=call.parameters.get("budget_us")))
    while not isinstance(message := call.lane.receive(), m.AskEnd):
        call.give(number=message.number)
    fault = message.fault or Fault("", 0, "")
    call.give(status=fault.status, kind=fault.kind, message=fault.message)
    call.end()


@call
def ask_and_end(call: ScriptedCall) -> None:
    call.send(m.Ask(1, m.WireRequest(), model=call.parameters["model"]))
    call.end()


@call
def ask_twice(call: ScriptedCall) -> None:
    call.send(m.Ask(1, m.WireRequest(), model="slow"), m.Ask(1, m.WireRequest(), model="slow"))
    threading.Event().wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--control", type=int)
    arguments.add_argument("--lifeline", type=int)
    options = arguments.parse_args()
    signal.alarm(120)  # hostile, not immortal: a test run that is killed kills nobody
    ScriptedApp(options.control).run()
