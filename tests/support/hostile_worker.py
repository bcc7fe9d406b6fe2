"""A worker that speaks the protocol of predictions and breaks it on demand, as one that behaves cannot.

Runs in place of `python -m corosrv.workers.worker`. What it does while it is set up, the predictor's name says, `NAME`
or `NAME:ARGUMENT`; what it does in a prediction, the input: `{"do": NAME, ...}`.
"""

import argparse
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from corosrv.contracts.jobs import setup
from corosrv.workers.wire import messages as m
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.thread_channel import ThreadChannel

COMMAND = (sys.executable, "-m", "tests.support.hostile_worker")

GARBAGE = b"\x00\x00\x00\x05hello"
HALF_A_FRAME = b"\x00\x00\x00\x09{"
TOO_LARGE = b"\x7f\xff\xff\xff{"
UNKNOWN = b'\x00\x00\x00\x12{"type":"weather"}'

_GRANDCHILD = "import signal; print('up', flush=True); signal.pause()"


def pause() -> None:
    """For ever, whatever signals arrive and are survived."""
    while True:
        signal.pause()


def spawn_grandchild(escapes: bool = False) -> int:
    """The number of a process that runs on, and holds all channels that this one has; `escapes`: from its group."""
    command = [sys.executable, "-S", "-c", _GRANDCHILD]
    fds = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    sockets = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=sockets, start_new_session=escapes)
    assert child.stdout is not None
    child.stdout.readline()
    return child.pid


class HostileWorker:
    def __init__(self, control_fd: int) -> None:
        self.control: ThreadChannel[Any, Any] = ThreadChannel.inherited(
            control_fd, StructCodec(m.ControlToWorker), takes_fds=True
        )
        self.slots: list[ThreadChannel[Any, Any]] = []
        self.cancelled: dict[str, threading.Event] = {}
        self.health = "healthy"
        self.survives_server = False

    def ready(self, n_slots: int, **changes: Any) -> None:
        self.control.send(m.Ready(**({"slots": list(range(n_slots)), "schema": {}} | changes)))

    def run(self) -> None:
        init = self.control.receive()
        name, _, argument = init.predictor_ref.partition(":")
        SET_UPS[name](self, init.num_slots or 1, argument)
        while (message := self.control.receive()) is not None:
            match message:
                case m.Lanes():
                    self._add_slots(self.control.take_fds())
                case m.Cancel():
                    self.cancelled.setdefault(message.id, threading.Event()).set()
                case m.HealthCheck():
                    self._check_health(message.id)
                case m.Shutdown():
                    break
        if self.survives_server:
            pause()
        os._exit(0)

    def _add_slots(self, fds: tuple[int, ...]) -> None:
        for fd in fds:
            self.slots.append(ThreadChannel.inherited(fd, StructCodec(m.SlotToWorker)))
            threading.Thread(target=self._serve, args=(len(self.slots) - 1,), daemon=True).start()

    def _check_health(self, check_id: str) -> None:
        if self.health != "hangs":
            self.control.send(m.HealthCheckResult(check_id, self.health, "" if self.health == "healthy" else "ill"))

    def _serve(self, slot: int) -> None:
        while (predict := self.slots[slot].receive()) is not None:
            call = Call(self, slot, predict)
            PREDICTIONS[call.input.get("do", "echo")](call)


class Call:
    """One prediction; ends with `done` unless what it was to do ends otherwise."""

    def __init__(self, worker: HostileWorker, slot: int, predict: m.Predict) -> None:
        self.worker = worker
        self.slot = slot
        self.channel = worker.slots[slot]
        self.id = predict.id
        self.predict = predict
        self.input = predict.input if predict.input is not None else self._read_input(predict.input_file)

    def _read_input(self, path: str | None) -> dict[str, Any]:
        assert path is not None
        with open(path, "rb") as file:
            value: dict[str, Any] = json.load(file)
        return value

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.channel.send(message)

    def send_raw(self, data: bytes) -> None:
        os.write(self.channel.fileno(), data)

    def done(self) -> None:
        self.send(setup.Done(self.id, 0.0))


SET_UPS: dict[str, Callable[[HostileWorker, int, str], None]] = {}
PREDICTIONS: dict[str, Callable[[Call], None]] = {}


def set_up(function: Callable[[HostileWorker, int, str], None]) -> Callable[[HostileWorker, int, str], None]:
    SET_UPS[function.__name__] = function
    return function


def prediction(function: Callable[[Call], None]) -> Callable[[Call], None]:
    PREDICTIONS[function.__name__] = function
    return function


# While it is set up.


@set_up
def well(worker: HostileWorker, n_slots: int, text: str) -> None:
    if text:
        worker.control.send(m.Log("stdout", text))
    worker.ready(n_slots)


@set_up
def ill(worker: HostileWorker, n_slots: int, health: str) -> None:
    worker.health = health
    worker.ready(n_slots)


@set_up
def fails(worker: HostileWorker, n_slots: int, error: str) -> None:
    worker.control.send(m.Log("stderr", "Traceback of it all"))
    worker.control.send(m.SlotFailed(-1, error))
    pause()


@set_up
def hangs(worker: HostileWorker, n_slots: int, text: str) -> None:
    worker.control.send(m.Log("stdout", f"{os.getpid()}\n"))
    pause()


@set_up
def is_stubborn(worker: HostileWorker, n_slots: int, text: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hangs(worker, n_slots, text)


@set_up
def is_ready_when_terminated(worker: HostileWorker, n_slots: int, text: str) -> None:
    def late(number: int, frame: object) -> None:
        worker.ready(n_slots)
        os._exit(0)

    signal.signal(signal.SIGTERM, late)
    hangs(worker, n_slots, text)


@set_up
def is_stopped(worker: HostileWorker, n_slots: int, text: str) -> None:
    worker.control.send(m.Log("stdout", f"{os.getpid()}\n"))
    os.kill(os.getpid(), signal.SIGSTOP)


@set_up
def has_family(worker: HostileWorker, n_slots: int, text: str) -> None:
    worker.control.send(m.Log("stdout", f"{spawn_grandchild()}\n"))
    if text == "hangs":
        pause()
    worker.ready(n_slots)


@set_up
def exits(worker: HostileWorker, n_slots: int, code: str) -> None:
    worker.control.send(m.Log("stdout", "last words"))
    os._exit(int(code))


@set_up
def is_killed(worker: HostileWorker, n_slots: int, number: str) -> None:
    os.kill(os.getpid(), int(number))


@set_up
def writes(worker: HostileWorker, n_slots: int, what: str) -> None:
    os.write(worker.control.fileno(), globals()[what])
    if what != "UNKNOWN":
        pause()
    worker.ready(n_slots)


@set_up
def closes_control(worker: HostileWorker, n_slots: int, text: str) -> None:
    worker.control.close()
    pause()


@set_up
def speaks_protocol(worker: HostileWorker, n_slots: int, number: str) -> None:
    worker.ready(n_slots, protocol=int(number))
    pause()


@set_up
def offers(worker: HostileWorker, n_slots: int, slots: str) -> None:
    worker.ready(n_slots, slots=[int(slot) for slot in slots.split(",") if slot])
    pause()


@set_up
def offers_many(worker: HostileWorker, n_slots: int, number: str) -> None:
    worker.ready(int(number))


@set_up
def tells(worker: HostileWorker, n_slots: int, text: str) -> None:
    worker.control.send(m.Log("stdout", f"{os.environ['COLOUR']} {os.getcwd()}"))
    worker.ready(n_slots)


@set_up
def counts_sockets(worker: HostileWorker, n_slots: int, text: str) -> None:
    with os.scandir("/proc/self/fd") as opened:
        kinds = [os.readlink(fd.path).partition(":")[0] for fd in opened if int(fd.name) > 2]
    worker.control.send(m.Log("stdout", f"{kinds.count('socket')} sockets, {kinds.count('pipe')} pipes"))
    worker.ready(n_slots)


@set_up
def is_ready_twice(worker: HostileWorker, n_slots: int, text: str) -> None:
    worker.ready(n_slots)
    worker.ready(n_slots)


@set_up
def is_ready_and_exits(worker: HostileWorker, n_slots: int, code: str) -> None:
    worker.ready(n_slots)
    os._exit(int(code))


# In a prediction.


@prediction
def echo(call: Call) -> None:
    call.send(setup.LogLine("stdout", "hello\n"), setup.OutputChunk(call.input.get("value"), 0))
    call.done()


@prediction
def nothing(call: Call) -> None:
    call.done()


@prediction
def tell_request(call: Call) -> None:
    predict = call.predict
    n_bytes = os.path.getsize(predict.input_file) if predict.input_file else -1
    call.send(setup.OutputChunk({"input_bytes": n_bytes, "file": predict.input_file, "context": predict.context}, 0))
    call.done()


@prediction
def print_outside(call: Call) -> None:
    call.worker.control.send(m.Log("stdout", "to nobody\n"))
    call.done()


@prediction
def fail(call: Call) -> None:
    call.send(setup.Failed(call.id, 0.0, "ValueError: no"))


@prediction
def wait_for_cancel(call: Call) -> None:
    call.send(setup.LogLine("stdout", "waits\n"))
    call.worker.cancelled.setdefault(call.id, threading.Event()).wait()
    call.send(setup.Cancelled(call.id, 0.0))


@prediction
def hang(call: Call) -> None:
    call.send(setup.LogLine("stdout", "hangs\n"))
    pause_thread()


@prediction
def exit(call: Call) -> None:
    call.send(setup.LogLine("stdout", "so far\n"))
    os._exit(call.input["code"])


@prediction
def die(call: Call) -> None:
    call.send(setup.LogLine("stdout", "so far\n"))
    os.kill(os.getpid(), call.input["signal"])


@prediction
def exit_in_a_frame(call: Call) -> None:
    call.send_raw(HALF_A_FRAME)
    os._exit(1)


@prediction
def done_and_exit(call: Call) -> None:
    call.done()
    os._exit(0)


@prediction
def abort(call: Call) -> None:
    call.worker.control.send(m.Fatal("out of cheese"))
    os.abort()


@prediction
def threaten_to_abort(call: Call) -> None:
    call.worker.control.send(m.Fatal("out of cheese"))
    pause_thread()


@prediction
def write(call: Call) -> None:
    call.send_raw(globals()[call.input["what"]])
    call.done() if call.input["what"] == "UNKNOWN" else pause_thread()


@prediction
def write_to_control(call: Call) -> None:
    os.write(call.worker.control.fileno(), globals()[call.input["what"]])
    pause_thread()


@prediction
def close_channel(call: Call) -> None:
    call.channel.close()


@prediction
def close_control(call: Call) -> None:
    call.worker.survives_server = True
    call.worker.control.close()
    pause_thread()


@prediction
def end_another(call: Call) -> None:
    call.send(setup.Done("another", 0.0))


@prediction
def end_twice(call: Call) -> None:
    call.done()
    call.done()


@prediction
def talk_after_the_end(call: Call) -> None:
    call.done()
    call.send(setup.LogLine("stdout", "late"))


@prediction
def fail_slot(call: Call) -> None:
    call.worker.control.send(m.SlotFailed(call.input["slot"], "the slot is torn"))
    call.worker.cancelled.setdefault(call.id, threading.Event()).wait()
    call.worker.control.send(m.Log("stdout", "let go"))


@prediction
def flood(call: Call) -> None:
    for index in range(call.input["chunks"]):
        call.send(setup.OutputChunk("x" * call.input["size"], index))
    call.done()


@prediction
def flood_and_exit(call: Call) -> None:
    flood(call)
    os._exit(0)


@prediction
def leave_family(call: Call) -> None:
    call.send(setup.OutputChunk(spawn_grandchild(call.input.get("escapes", False)), 0))
    os._exit(7)


def pause_thread() -> None:
    threading.Event().wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--control", type=int)
    arguments.add_argument("--lifeline", type=int)
    options = arguments.parse_args()
    signal.alarm(120)  # hostile, not immortal: a test run that is killed kills nobody
    HostileWorker(options.control).run()
