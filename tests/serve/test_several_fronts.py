"""One gunicorn of several workers, each of them a front with worker processes of its own, and one port for gRPC."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from corosrv.app import check_several
from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import load
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import GUNICORN, Server, free_port, servers
from tests.serve.test_grpc import grpc_port, infer
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

APP = "tests/support/napping_app.py:app"
N_CALLS = 60
PEERS = {"model": "synthetic:", "peers": "http://127.0.0.1:9", "peer_token": "12345678" * 4, "replica_id": "a"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    """Runs two fronts on one port; each has one worker process."""
    with redis_server() as redis, servers(tmp_path_factory.mktemp("pair"), cache) as started:
        server = started.start(
            *GUNICORN, "-b", "127.0.0.1:0", "-w", "2", "corosrv.app",
            worker_app=APP, workers="1", redis_url=redis.url, grpc_port=free_port(),
        )  # fmt: skip
        eventually(lambda: server.log.count("is ready") == 4, 60, "two workers, and two processes of gRPC")
        yield server


def nap(server: Server, seconds: float) -> tuple[int, int]:
    """Calls the handler; returns the status, and the process that ran it."""
    tensor = {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [seconds]}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/v2/models/nap/infer", json.dumps({"inputs": [tensor]}))
        answer = connection.getresponse()
        body = json.loads(answer.read())
        return answer.status, body["outputs"][0]["data"][0] if answer.status == 200 else 0
    finally:
        connection.close()


def test_calls_of_one_port_run_in_the_workers_of_both_fronts(pair: Server):
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda _: nap(pair, 0.02), range(N_CALLS)))

    assert [status for status, _ in answers] == [200] * N_CALLS
    assert len(Counter(pid for _, pid in answers)) == 2


def test_calls_of_one_port_for_grpc_run_in_the_workers_of_both_fronts(pair: Server):
    seconds = Tensor("seconds", "FP64", [1], data=[0.0])

    answers = [infer(grpc_port(pair), sent=infer_request("nap", seconds)) for _ in range(16)]

    assert len({answer.raw_output_contents[0] for answer in answers}) == 2


@pytest.mark.parametrize(
    "overrides", [{"worker_app": APP}, {"upstream": "http://127.0.0.1:9"}], ids=["application", "upstreams"]
)
def test_several_fronts_without_redis_are_refused_in_words(overrides: dict[str, str]):
    with pytest.raises(SettingsError, match=r"queue in one process: .* or set COROSRV_REDIS_URL"):
        check_several(load(overrides, {}))


@pytest.mark.parametrize(
    "overrides",
    [{"worker_app": APP, "redis_url": "redis://127.0.0.1:9"}, PEERS],
    ids=["application", "peers"],
)
def test_a_port_of_one_process_is_refused_to_several(overrides: dict[str, str]):
    with pytest.raises(SettingsError, match="COROSRV_MGMT_PORT is a port of one process"):
        check_several(load(overrides | {"mgmt_port": 8001, "mgmt_token_file": "token"}, {}))
