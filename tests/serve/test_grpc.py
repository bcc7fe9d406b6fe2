"""gRPC beside REST in a real server: one application, two fronts, and what the death of one means for the other."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from corosrv.dialects.kserve.grpc import protocol
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import SERVE, START_SECONDS, Process, Server, Servers, free_port
from tests.support.waiting import eventually

APP = str(Path(__file__).parent.parent.parent / "deploy" / "app" / "basic.py") + ":app"
ADD = infer_request("add", Tensor("a", "INT32", [2], data=[1, 2]), Tensor("b", "INT32", [2], data=[3, 4]), id="q")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Servers(tmp_path_factory.mktemp("grpc"), tmp_path_factory.mktemp("grpc-cache"))
    try:
        yield started.start(COROSRV_MODEL="", worker_app=APP, grpc_port=0)
    finally:
        started.stop()


def grpc_port(server: Server) -> int:
    return int(eventually(lambda: re.findall(r"gRPC listens on 127\.0\.0\.1, port (\d+)", server.log))[-1])


def infer(port: int, metadata: dict[str, str] | None = None, sent: Any = ADD) -> Any:
    """Calls a model on a connection of its own."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            f"/{protocol.SERVICE}/ModelInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelInferResponse.FromString,
        )
        return call(sent, timeout=START_SECONDS, wait_for_ready=True, metadata=list((metadata or {}).items()))


def grpc_process(server: Server) -> Process:
    pids = [pid for worker in server.workers() for pid in Process(worker).children()]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return Process(next(pid for pid, command in commands.items() if b"corosrv.dialects.kserve.grpc" in command))


def test_a_handler_answers_over_both_fronts(server: Server) -> None:
    answer = infer(grpc_port(server))

    assert (answer.id, answer.model_name) == ("q", "add")
    assert answer.raw_output_contents[0] == (4).to_bytes(8, "little") + (6).to_bytes(8, "little")
    assert server.get("/v2/models/add/ready")[0] == 200


def test_the_death_of_the_grpc_process_leaves_http_as_it_is_and_another_one_follows(server: Server) -> None:
    port = grpc_port(server)
    process = grpc_process(server)
    os.kill(process.pid, signal.SIGSTOP)  # so that nobody is faster than the questions that follow
    process.kill()

    eventually(lambda: not process.is_alive)
    assert server.health() == "ok"
    assert server.get("/v2/health/ready")[0] == 200
    assert infer(port).model_name == "add"
    assert grpc_process(server).pid != process.pid


def test_the_grpc_process_ends_with_a_front_that_is_killed_and_follows_the_next_one(server: Server) -> None:
    process = grpc_process(server)
    (front,) = server.workers()
    n_starts = server.log.count("gRPC listens on")
    Process(front).kill()

    eventually(lambda: not process.is_alive)
    eventually(lambda: server.log.count("gRPC listens on") > n_starts, START_SECONDS)
    eventually(lambda: server.get("/v2/models/add/ready")[0] == 200, START_SECONDS)
    assert infer(grpc_port(server)).model_name == "add"


def test_several_worker_processes_listen_on_one_port_and_the_death_of_one_leaves_it_to_the_others(
    start: Servers, tmp_path: Path
) -> None:
    text = Tensor("text_input", "BYTES", [1], data=[b"hi"])
    asked = infer_request("synthetic", text, parameters={"max_tokens": 1})
    port = free_port()
    server = start.start(*SERVE, "-w", "3", model="synthetic:", grpc_port=port, run_dir=tmp_path)

    def serving_grpc() -> set[str]:
        text = server.get("/metrics")[1]
        return set(re.findall(r'corosrv_grpc_calls_total\{code="OK",front="(\d+)",method="ModelInfer"\}', text))

    def all_serve() -> bool:
        """Calls on some connections, which the system gives to any of the three; some more until each has had one."""
        assert {infer(port, sent=asked).model_name for _ in range(8)} == {"synthetic"}
        return len(serving_grpc()) == 3

    eventually(
        lambda: server.log.count("gRPC listens on") == 3 and server.log.count("loaded\n") == 3, START_SECONDS, "three"
    )
    assert {server.health() for _ in range(12)} == {"ok"}
    eventually(all_serve, what="calls at each of the three")

    victim = Process(server.workers()[0])
    (process,) = victim.children_of("corosrv.dialects.kserve.grpc")
    victim.kill()
    eventually(lambda: not Process(process).is_alive, what="the end of its gRPC process")
    assert {infer(port, sent=asked).model_name for _ in range(12)} == {"synthetic"}
    eventually(lambda: server.log.count("gRPC listens on") == 4, START_SECONDS, "another one")
    eventually(all_serve, what="calls at each of the three")
