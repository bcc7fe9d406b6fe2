"""The life of the gRPC process: its start, its death, its successor, and the end of its server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gevent
import grpc
import msgspec
import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.dialects.kserve.grpc import front as grpc_front
from corosrv.dialects.kserve.grpc import protocol
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import Ask, WireRequest, WireTensor
from corosrv.workers.wire.codec import framed
from corosrv.workers.worker.parent.call_services import CallServices
from tests.dialects.kserve.grpc.client import Stub, in_thread, infer_request, status, talk
from tests.dialects.kserve.grpc.conftest import await_state, make_worker, serving
from tests.support.descriptors import n_descriptors
from tests.support.function_worker import FunctionWorker
from tests.support.waiting import wait_until
from tests.workers.worker.predicting import is_alive

SEVEN = Tensor("x", "INT32", [1], data=[7])


@pytest.fixture
def own_worker() -> FunctionWorker:
    return make_worker()


@pytest.fixture
def own_front(own_worker: FunctionWorker) -> Iterator[GrpcFront]:
    with serving(own_worker) as front:
        yield front


def infer(front: GrpcFront, request: Any) -> Any:
    async def scenario(stub: Stub) -> Any:
        return await stub.infer(request, wait_for_ready=True, timeout=20)

    return talk(front.port, scenario)


def test_a_process_that_is_killed_has_its_calls_cancelled_and_is_replaced_on_the_same_port(
    own_front: GrpcFront, own_worker: FunctionWorker
) -> None:
    port, pid = own_front.port, own_front.pid
    assert pid is not None

    async def scenario(stub: Stub) -> Any:
        unary = asyncio.ensure_future(status(stub.infer(infer_request("hang"))))
        stream = stub.stream()
        await stream.write(infer_request("hang"))
        while len(own_worker.calls) < 2:
            await asyncio.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        return (await unary)[0], await stream.code()

    codes = talk(port, scenario)

    assert codes == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)  # as their connection is gone
    wait_until(lambda: own_worker.n_running == 0)
    assert all(call.cancelled.is_set() for call in own_worker.calls)
    wait_until(lambda: own_front.n_restarts == 1)
    await_state(own_front, WorkerState.READY)
    assert own_front.port == port
    assert own_front.pid != pid
    assert infer(own_front, infer_request("echo", SEVEN)).model_name == "echo"


@pytest.mark.own_process
def test_nothing_is_left_when_a_front_has_stopped(own_worker: FunctionWorker) -> None:
    gevent.get_hub().threadpool.apply(int)
    before = n_descriptors()
    with serving(own_worker) as front:
        pid = front.pid
        assert pid is not None
        asked = gevent.spawn(talk, front.port, lambda stub: status(stub.infer(infer_request("hang"))))
        wait_until(lambda: own_worker.n_running == 1)
    asked.get(timeout=20)

    assert front.state is WorkerState.STOPPED
    assert not is_alive(pid)
    wait_until(lambda: own_worker.n_running == 0)
    wait_until(lambda: n_descriptors() <= before + 3)  # of the thread pool and of grpcio's client


def test_a_call_that_runs_may_end_within_the_grace(own_worker: FunctionWorker) -> None:
    goes_on = gevent.event.Event()

    def patient(call: Any) -> None:
        goes_on.wait(20)
        call.send(*call.request.inputs)

    own_worker.add(patient, "patient")
    with serving(own_worker) as front:
        asked = gevent.spawn(infer, front, infer_request("patient", SEVEN))
        wait_until(lambda: own_worker.n_running == 1)
        stopping = gevent.spawn(front.stop, 10.0)
        gevent.idle()
        goes_on.set()

        assert asked.get(timeout=20).model_name == "patient"
        stopping.get(timeout=20)
        assert front.state is WorkerState.STOPPED


def test_a_call_that_goes_on_beyond_the_grace_may_have_run_and_is_never_called_unavailable(
    own_worker: FunctionWorker,
) -> None:
    async def scenario(stub: Stub) -> Any:
        unary = asyncio.ensure_future(status(stub.infer(infer_request("hang"))))
        stream = stub.stream()
        await stream.write(infer_request("hang", id="q"))
        return await unary, await stream.read()

    with serving(own_worker) as front:
        talking = gevent.spawn(talk, front.port, scenario)
        wait_until(lambda: own_worker.n_running == 2)
        front.stop(0.1)
        (code, text, _), answer = talking.get(timeout=20)

    assert (code, text) == (grpc.StatusCode.ABORTED, "the server was stopped while the call ran")
    assert (answer.error_message, answer.infer_response.id) == (text, "q")
    wait_until(lambda: own_worker.n_running == 0)
    assert all(call.cancelled.is_set() for call in own_worker.calls)


def test_a_port_that_is_taken_is_said_and_not_tried_again(own_worker: FunctionWorker) -> None:
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        front = GrpcFront(GrpcConfig(port=taken.getsockname()[1]), own_worker, own_worker.check_ready, CallServices())
        front.start()
        await_state(front, WorkerState.SETUP_FAILED)

        assert f"127.0.0.1:{taken.getsockname()[1]}" in front.reason
        front.stop(0.0)
        assert front.n_restarts == 0


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def raw_call(port: int, method: str, **metadata: bytes) -> bytes:
    """Calls a method with an empty message over a connection of its own, which no client would with such metadata."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": f"/{protocol.SERVICE}/{method}".encode(),
        b":authority": b"test",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        **{name.encode(): value for name, value in metadata.items()},
    }
    literals = (bytes((0, len(name))) + name + bytes((len(value),)) + value for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b""))
        connection.sendall(http2_frame(1, 4, 1, b"".join(literals)) + http2_frame(0, 1, 1, bytes(5)))
        answer = b""
        while b"grpc-status" not in answer:
            answer += connection.recv(65536)
        return answer


def test_metadata_outside_utf_8_writes_no_traceback(
    capfd: pytest.CaptureFixture[str], own_worker: FunctionWorker
) -> None:
    with serving(own_worker) as front:
        answer = in_thread(functools.partial(raw_call, front.port, "ServerMetadata", note=b"\xff\xfe"))

    assert b"grpc-status\x010" in answer
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_that_hangs_is_replaced(own_worker: FunctionWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(own_worker) as front:
        monkeypatch.setattr(grpc_front, "HEARTBEAT", 0.02)
        monkeypatch.setattr(grpc_front, "MISSED_BEATS", 200)  # of which the process sends one in a hundred
        pid = front.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: front.n_restarts == 1)

        assert not is_alive(pid)
        monkeypatch.undo()
        await_state(front, WorkerState.READY)


HOSTILE = """
import socket, sys
import msgspec
from corosrv.dialects.kserve.grpc.messages import GrpcServing
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import framed
control = socket.socket(fileno=int(sys.argv[2]))
data, (lane_fd,) = descriptors.receive(control, 65536)
control.sendall(framed(msgspec.msgpack.encode(GrpcServing(1))))
lane = socket.socket(fileno=lane_fd)
lane.sendall({nonsense!r})
while control.recv(1):
    pass
"""


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff\xff\xff\xff",
        framed(b"no message"),
        framed(msgspec.msgpack.encode(Ask(1, WireRequest([WireTensor("x", "UINT8", [9], n_attached=9)]), "echo"))),
        framed(msgspec.msgpack.encode(Ask(1, WireRequest(), "hang"))) * 2,
    ],
    ids=["a frame of no length", "a frame of no message", "a tensor that is not there", "a number in use"],
)
def test_a_process_that_sends_nonsense_is_killed_and_what_it_asked_for_cancelled(
    own_worker: FunctionWorker, nonsense: bytes
) -> None:
    command = (sys.executable, "-c", HOSTILE.format(nonsense=nonsense))
    front = GrpcFront(GrpcConfig(command=command), own_worker, own_worker.check_ready, CallServices())
    front.start()

    wait_until(lambda: front.n_restarts == 1)
    front.kill()
    wait_until(lambda: own_worker.n_running == 0)
    front.stop(0.0)


SERVER = """
import gevent
from tests.dialects.kserve.grpc.conftest import make_worker, serving
with serving(make_worker()) as front:
    print(front.pid, flush=True)
    gevent.sleep(60)
"""


@pytest.mark.parametrize("does_hang", [False, True])
def test_the_process_ends_with_its_server_also_if_it_hangs(does_hang: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_alive(pid)
        if does_hang:
            os.kill(pid, signal.SIGSTOP)

        server.kill()
        server.wait()

    with gevent.Timeout(20):
        while is_alive(pid):
            gevent.sleep(0.01)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("__main__", ("flask", "gevent", "gunicorn", "werkzeug", "llama_cpp")), ("front", ("grpc", "google"))],
    ids=["process", "server"],
)
def test_the_process_loads_no_web_framework_and_the_server_no_grpc(module: str, unwanted: tuple[str, ...]) -> None:
    program = f"""
import sys
import corosrv.dialects.kserve.grpc.{module}
print({{name.partition(".")[0] for name in sys.modules}} & {{*{unwanted!r}}})
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize("package", ["grpc", "google.protobuf"])
def test_a_server_without_the_extra_says_so(
    own_worker: FunctionWorker, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))

    with pytest.raises(SettingsError, match=r"corosrv\[grpc\]"):
        GrpcFront(GrpcConfig(), own_worker, own_worker.check_ready, CallServices())
