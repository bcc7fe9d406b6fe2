"""Workers that somebody else starts, against a real server: they join, serve, die, leave and come back."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corosrv.web.management.client import ManagementClient, running_servers
from tests.serve.joined_worker import APP, PATIENCE, JoinedWorker, joined_worker
from tests.serve.server import Process, Server, Servers, servers
from tests.support.waiting import eventually
from tests.web.management.serving import short_folder

TWO_POOLS = APP.removesuffix("app") + "two_pools"
NOBODY = 65534


@pytest.fixture(scope="module")
def run_dir() -> Iterator[Path]:
    with short_folder() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(run_dir: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers(tmp_path_factory.mktemp("joinable"), cache) as started:
        (token := tmp_path_factory.mktemp("token") / "token").write_text("secret")
        server = started.start(model="", joinable=1, run_dir=run_dir, mgmt_port=0, mgmt_token_file=token)
        n_before = server.worker.n_descriptors()
        yield server
        eventually(lambda: server.worker.n_descriptors() <= n_before, PATIENCE, "all descriptors are closed")


def call(server: Server, model: str, **parameters: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [], "parameters": parameters}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def pid_that_answers(server: Server) -> int:
    """Calls until a worker answers, and returns its pid."""
    eventually(lambda: call(server, "where")[0] == 200, PATIENCE, f"an answer\n{server.log}")
    return int(call(server, "where")[1]["outputs"][0]["data"][0])


def workers(run_dir: Path) -> dict[str, str]:
    """Returns the states of all workers by their names."""
    shown = client(run_dir).call("GET", "/v1/workers")["workers"]
    return {worker["id"]: worker["state"] for worker in shown}


def client(run_dir: Path) -> ManagementClient:
    ((found, _),) = running_servers(str(run_dir))
    return found


def test_a_server_without_workers_is_ready_and_knows_no_model(server: Server):
    assert server.get("/v2/health/ready") == (200, {"ready": True, "live": True})
    assert call(server, "never_seen")[0] == 404


def test_a_worker_serves_calls_in_a_process_of_its_own(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined:
        assert pid_that_answers(server) == joined.worker
        assert workers(run_dir) == {"joined/0": "ready"}
        eventually(lambda: joined.log.endswith("as joined/0\n"), PATIENCE, "its own word about it")


def test_a_killed_worker_answers_its_call_and_another_takes_its_place(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined, ThreadPoolExecutor() as threads:
        first = pid_that_answers(server)
        n_naps = server.log.count("napping")
        running = threads.submit(call, server, "nap", seconds=600)
        eventually(lambda: server.log.count("napping") > n_naps, PATIENCE, "the call runs")

        os.kill(joined.worker, signal.SIGKILL)

        assert running.result(PATIENCE)[0] == 502
        second = pid_that_answers(server)
        assert second == joined.worker != first
        assert "the worker has failed: the worker's connection ended; another one starts in" in joined.log


def test_the_worker_process_ends_with_whoever_started_it(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined:
        worker = Process(pid_that_answers(server))

        joined.signal(signal.SIGKILL)

        eventually(lambda: not worker.is_alive, PATIENCE, "the worker process has ended")
        eventually(lambda: call(server, "where")[0] == 503, PATIENCE, "no worker is left")
        assert workers(run_dir) == {"joined/0": "failed"}


def test_a_worker_that_is_told_to_end_answers_its_call_first(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined, ThreadPoolExecutor() as threads:
        pid = pid_that_answers(server)
        n_naps = server.log.count("napping")
        running = threads.submit(call, server, "nap", seconds=1.0)
        eventually(lambda: server.log.count("napping") > n_naps, PATIENCE, "the call runs")

        joined.signal(signal.SIGTERM)

        assert running.result(PATIENCE)[1]["outputs"][0]["data"] == [pid]
        assert joined.wait() == 0
        eventually(lambda: workers(run_dir) == {}, PATIENCE, "the server knows that it has left")


def test_a_second_signal_ends_a_worker_at_once(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined, ThreadPoolExecutor() as threads:
        pid_that_answers(server)
        n_naps = server.log.count("napping")
        running = threads.submit(call, server, "nap", seconds=600)
        eventually(lambda: server.log.count("napping") > n_naps, PATIENCE, "the call runs")
        joined.signal(signal.SIGTERM)
        eventually(lambda: workers(run_dir) == {"joined/0": "draining"}, PATIENCE, "it drains")

        joined.signal(signal.SIGINT)

        assert joined.wait() == 0
        assert running.result(PATIENCE)[0] == 502


def test_a_drained_worker_is_replaced_by_whoever_started_it(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined:
        first = pid_that_answers(server)

        client(run_dir).call("POST", "/v1/workers/joined%2F0/drain")

        eventually(lambda: pid_that_answers(server) != first, PATIENCE, f"another worker\n{joined.log}")


def failure_of(joined: JoinedWorker) -> str:
    assert joined.wait() == 1
    return joined.log


def test_an_application_with_several_pools_is_asked_for_one(server: Server, run_dir: Path, tmp_path: Path):
    with joined_worker(tmp_path, TWO_POOLS, "--join", str(run_dir)) as joined:
        assert "the application has the pools default, Second: say which one with --pool" in failure_of(joined)

    with joined_worker(tmp_path, TWO_POOLS, "--join", str(run_dir), "--pool", "Second") as joined:
        eventually(lambda: call(server, "second")[0] == 200, PATIENCE, f"an answer\n{joined.log}")
        joined.signal(signal.SIGTERM)
        assert joined.wait() == 0
    eventually(lambda: "second stops" in server.log, PATIENCE, "on_stop has run")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((APP, "--pool", "third"), "has no pool 'third'"),
        (("no_such_module:app",), "there is no module 'no_such_module'"),
    ],
    ids=["pool", "module"],
)
def test_a_worker_that_cannot_be_set_up_says_why_and_ends(
    server: Server, run_dir: Path, tmp_path: Path, words: tuple[str, ...], fault: str
):
    with joined_worker(tmp_path, *words, "--join", str(run_dir)) as joined:
        assert fault in failure_of(joined)


def test_a_folder_that_others_can_use_is_not_trusted(tmp_path: Path):
    tmp_path.chmod(0o755)

    with joined_worker(tmp_path, APP, "--join", str(tmp_path)) as joined:
        assert "can be used by others" in failure_of(joined)


def test_a_socket_that_is_no_servers_is_waited_for(tmp_path: Path):
    with joined_worker(tmp_path, APP, "--join", str(tmp_path / "none.sock")) as joined:
        eventually(lambda: "and this goes on trying: No such file" in joined.log, PATIENCE, "a word about it")

        joined.signal(signal.SIGTERM)

        assert joined.wait() == 0


def test_two_servers_in_one_folder_have_a_socket_each(server: Server, run_dir: Path, start: Servers, tmp_path: Path):
    own = client(run_dir).path
    other = start.start(model="", joinable=1, run_dir=run_dir)

    with joined_worker(tmp_path, APP, "--join", str(run_dir)) as joined:
        assert "2 servers run in" in failure_of(joined)
        assert own in joined.log
    with joined_worker(tmp_path, APP, "--join", own):
        pid_that_answers(server)
        assert call(other, "where")[0] == 404

    other.signal(signal.SIGTERM)
    assert other.wait(PATIENCE) == 0
    assert [path.name for path in run_dir.iterdir()] == [Path(own).name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_may_not_join_or_manage(server: Server, run_dir: Path):
    path = client(run_dir).path

    assert as_nobody(path, "GET", "/v1/workers") == "PermissionError"
    run_dir.chmod(0o755)
    Path(path).chmod(0o666)
    try:
        assert as_nobody(path, "POST", "/v1/workers/join?app=a:b").startswith("403 the user 65534 may not")
        assert as_nobody(path, "GET", "/v1/workers").startswith("403 the user 65534 may not")
    finally:
        run_dir.chmod(0o700)


def as_nobody(path: str, method: str, target: str) -> str:
    """Makes a request as another user of this machine; returns the status and the error, or why there was none."""
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        outcome = "nothing"
        try:
            os.setgroups([])
            os.setuid(NOBODY)
            outcome = request(path, method, target)
        except BaseException as error:
            outcome = type(error).__name__
        finally:
            os.write(theirs, outcome.encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as reader:
        outcome = reader.read()
    os.waitpid(pid, 0)
    return outcome


def request(path: str, method: str, target: str) -> str:
    connection = ManagementClient(path).connect()
    connection.request(method, target, headers={"Connection": "Upgrade", "Upgrade": "corosrv-worker/1"})
    answer = connection.getresponse()
    return f"{answer.status} {json.loads(answer.read()).get('error')}"


def test_a_worker_comes_back_when_the_server_was_started_anew(start: Servers, tmp_path: Path):
    with short_folder() as folder, joined_worker(tmp_path, APP, "--join", folder) as joined:
        first = start.start(model="", joinable=1, run_dir=folder)
        before = Process(pid_that_answers(first))

        first.stop()

        eventually(lambda: not before.is_alive, PATIENCE, "the worker ends with its server")
        second = start.start(model="", joinable=1, run_dir=folder)
        assert pid_that_answers(second) == joined.worker != before.pid


def test_a_worker_that_keeps_the_interpreter_to_itself_ends_with_its_server(start: Servers, tmp_path: Path):
    with short_folder() as folder, joined_worker(tmp_path, APP, "--join", folder), ThreadPoolExecutor() as threads:
        server = start.start(model="", joinable=1, run_dir=folder)
        worker = Process(pid_that_answers(server))
        running = threads.submit(call, server, "hold")
        eventually(lambda: "holding" in server.log, PATIENCE, "the call runs")

        server.stop()

        assert running.exception(PATIENCE) is not None
        eventually(lambda: not worker.is_alive, PATIENCE, "the worker ends with its server")
