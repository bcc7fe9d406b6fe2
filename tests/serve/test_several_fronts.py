"""One gunicorn of several workers, each of them a front with worker processes of its own, and one port for gRPC."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from corosrv.app import check_several
from corosrv.base.errors import ManagementError, SettingsError
from corosrv.contracts.settings import load
from corosrv.dialects.kserve.grpc import protocol
from corosrv.formats.tensors import Tensor
from corosrv.web.management.client import ManagementClient, running_servers
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import GUNICORN, SERVE, START_SECONDS, Process, Server, free_port, servers
from tests.serve.test_grpc import grpc_port, infer
from tests.serve.wire import Answer
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

APP = "tests/support/napping_app.py:app"
N_CALLS = 60
TOKEN = "12345678" * 4
PEERS = {"model": "synthetic:", "peers": "http://127.0.0.1:9", "peer_token": TOKEN, "replica_id": "a"}


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder whose path leaves room for sockets' names."""
    with TemporaryDirectory(prefix="corosrv-") as folder:
        for name in ("a", "b"):
            (Path(folder) / name).mkdir(mode=0o700)
        yield Path(folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    """Runs two fronts on one port; each has one worker process."""
    with redis_server() as redis, servers(tmp_path_factory.mktemp("pair"), cache) as started:
        server = started.start(
            *GUNICORN, "-b", "127.0.0.1:0", "-w", "2", "corosrv.app",
            worker_app=APP, workers="1", redis_url=redis.url, grpc_port=free_port(),
        )  # fmt: skip
        eventually(lambda: server.log.count("is ready") == 4, START_SECONDS, "two workers, and two processes of gRPC")
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


def test_calls_of_a_session_run_in_one_worker_and_sessions_in_the_workers_of_both_fronts(pair: Server):
    body = {"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [0.0]}]}

    def worker_of(session: str) -> int:
        answer = ask(pair, "POST", "/v2/models/nap/infer", body, {"X-Session-Id": session})
        return int(answer.json["outputs"][0]["data"][0])

    workers = [{worker_of(f"session {number}") for _ in range(3)} for number in range(24)]

    assert {*map(len, workers)} == {1}
    assert len(set().union(*workers)) == 2


def test_objects_are_found_whichever_front_has_them(pair: Server):
    value = struct.pack("<d", 0.0)
    tensor = {"name": "seconds", "datatype": "FP64", "shape": [1]}

    def keep() -> str:
        answer = ask(pair, "POST", "/v2/models/keep/infer", {"inputs": [tensor | {"data": [0.0]}]})
        return str(answer.json["outputs"][0]["data"][0])

    def use(id: str) -> int:
        body = {"inputs": [tensor | {"parameters": {"object_ref": id}}]}
        return ask(pair, "POST", "/v2/models/nap/infer", body).status

    def store(method: str = "POST", path: str = "/v2/objects") -> str:
        return str(ask(pair, method, path, value, {"Content-Type": "application/x-double"}).json["id"])

    mine, theirs = [store() for _ in range(6)], [keep() for _ in range(6)]
    read = [ask(pair, "GET", f"/v2/objects/{id}") for id in (*mine, *theirs)]
    assert [(answer.status, answer.body) for answer in read] == [(200, value)] * 12
    assert {answer.headers["content-type"] for answer in read[:6]} == {"application/x-double"}
    assert len({answer.headers["etag"] for answer in read}) == 1
    assert [use(id) for id in (*mine, *theirs) for _ in range(3)] == [200] * 36

    for _ in range(4):
        last = store("PUT", "/v2/objects/by-key/mine")
        found = [ask(pair, "GET", "/v2/objects?key=mine").json["objects"] for _ in range(4)]
        assert [[one["id"] for one in each] for each in found] == [[last]] * 4

    assert [ask(pair, "DELETE", f"/v2/objects/{id}").status for id in (*mine, *theirs)] == [200] * 12
    assert {ask(pair, "GET", f"/v2/objects/{id}").status for id in (*mine, *theirs)} == {404}
    assert {use(id) for id in (*mine, *theirs)} == {404}


def keyed(model: str, key: str, *tensors: Tensor, **parameters: Any) -> tuple[Any, dict[str, str]]:
    """Returns what `infer` takes for a call with an idempotency key."""
    return infer_request(model, *tensors, id="q", parameters=parameters), {"idempotency-key": key}


def test_a_key_over_grpc_has_one_answer_whichever_front_is_asked_and_the_same_over_http(pair: Server):
    sent, metadata = keyed("nap", "one", Tensor("seconds", "FP64", [1], data=[0.0]))
    other, _ = keyed("nap", "one", Tensor("seconds", "FP64", [1], data=[0.5]))

    answers = [infer(grpc_port(pair), metadata, sent) for _ in range(16)]
    tensor = {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [0.0]}
    over_http = ask(pair, "POST", "/v2/models/nap/infer", {"id": "q", "inputs": [tensor]}, {"Idempotency-Key": "one"})
    refused = []
    for _ in range(8):
        with pytest.raises(grpc.RpcError) as error:
            infer(grpc_port(pair), metadata, other)
        refused.append(error.value)

    assert {answer.raw_output_contents[0] for answer in answers} == {
        over_http.json["outputs"][0]["data"][0].to_bytes(8, "little")
    }
    assert over_http.headers["idempotency-replayed"] == "true"
    assert {(error.code(), "another request" in error.details()) for error in refused} == {
        (grpc.StatusCode.INVALID_ARGUMENT, True)
    }


def test_a_call_under_a_key_runs_once_while_both_fronts_are_asked_for_it(pair: Server):
    sent, metadata = keyed("nap", "two", Tensor("seconds", "FP64", [1], data=[1.0]))

    with ExitStack() as stack:
        place, options = f"127.0.0.1:{grpc_port(pair)}", [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(place, options)) for _ in range(8)]
        for channel in channels:  # so that all are asked before the first has answered
            grpc.channel_ready_future(channel).result(START_SECONDS)
        methods = [
            channel.unary_unary(
                f"/{protocol.SERVICE}/ModelInfer",
                request_serializer=protocol.ModelInferRequest.SerializeToString,
                response_deserializer=protocol.ModelInferResponse.FromString,
            )
            for channel in channels
        ]
        calls = [method.future(sent, timeout=START_SECONDS, metadata=list(metadata.items())) for method in methods]
        found = [call.code() if call.exception() else call.result().raw_output_contents[0] for call in calls]

    assert Counter(map(type, found)) == {bytes: 1, grpc.StatusCode: 7}
    assert {*found} >= {grpc.StatusCode.FAILED_PRECONDITION}
    assert (
        len(
            {infer(grpc_port(pair), metadata, sent).raw_output_contents[0], *found}
            - {grpc.StatusCode.FAILED_PRECONDITION}
        )
        == 1
    )


@pytest.mark.model
def test_a_stream_over_grpc_is_made_once_under_a_key_and_a_client_that_leaves_ends_it(
    tmp_path: Path, short_tmp: Path, cache: Path
) -> None:
    text = Tensor("text_input", "BYTES", [1], data=[b"Once upon a time"])
    with servers(tmp_path, cache) as started:
        server = started.start(*SERVE, "-w", "2", run_dir=short_tmp / "a", model="", ctx=4096, grpc_port=free_port())
        eventually(lambda: server.log.count("gRPC listens") == 2, START_SECONDS, "two processes of gRPC")
        eventually(lambda: server.log.count(": loaded") == 2, START_SECONDS, "two fronts that have the model")
        (model,) = (one["id"] for one in server.get("/v1/models")[1]["data"])

        def stream(key: str, max_tokens: int) -> tuple[Any, grpc.Channel]:
            channel = grpc.insecure_channel(
                f"127.0.0.1:{grpc_port(server)}", [("grpc.use_local_subchannel_pool", 1)]
            )  # fmt: skip
            call = channel.stream_stream(
                f"/{protocol.SERVICE}/ModelStreamInfer",
                request_serializer=protocol.ModelInferRequest.SerializeToString,
                response_deserializer=protocol.ModelStreamInferResponse.FromString,
            )
            sent, metadata = keyed(model, key, text, max_tokens=max_tokens, temperature=1.5)
            return call(iter([sent]), timeout=60, wait_for_ready=True, metadata=list(metadata.items())), channel

        def read(key: str) -> tuple[str, int]:
            answers, channel = stream(key, 12)
            with channel:
                pieces = [one.infer_response.raw_output_contents[0][4:].decode() for one in answers]
            return "".join(pieces), len(pieces)

        texts = {read("one") for _ in range(8)}
        assert len(texts) == 1
        assert texts.pop()[1] > 6
        assert server.metric("generated_tokens_total") <= 12

        for number in range(4):  # whichever process has them
            answers, channel = stream(f"left {number}", 3000)
            next(answers)
            channel.close()
            server.wait_metric("running", 0)


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


CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own, which any front may accept."""
    with server.connect(timeout=60) as connection:
        return connection.ask(method, path, body, headers or {})


def managed(run_dir: Path) -> list[ManagementClient]:
    return [client for client, _ in running_servers(str(run_dir))]


def wait_fronts(run_dir: Path) -> None:
    """Waits until three fronts serve, and each finds its upstreams ready: connections lead to the quickest ones."""

    def are_ready() -> bool:
        with suppress(ManagementError, OSError):  # one has just begun, or ended
            clients = managed(run_dir)
            shown = [one["state"] for client in clients for one in client.call("GET", "/workers")["workers"]]
            return len(clients) == 3 and {*shown} == {"ready"}
        return False

    eventually(are_ready, START_SECONDS, "three fronts")


def test_fronts_share_the_permits_of_an_engine_behind_other_fronts_and_what_they_keep(
    tmp_path: Path, short_tmp: Path, cache: Path
) -> None:
    with redis_server() as redis, servers(tmp_path, cache) as started:
        behind = started.start(*SERVE, "-w", "2", run_dir=short_tmp / "b", model="synthetic:?tokens_per_s=50", slots=16)
        before = started.start(
            *SERVE, "-w", "3", run_dir=short_tmp / "a", COROSRV_MODEL="", redis_url=redis.url,
            upstream=f"http://127.0.0.1:{behind.port}?concurrency=4",
        )  # fmt: skip
        wait_fronts(short_tmp / "a")

        made = [ask(before, "POST", CHAT, HI, {"Idempotency-Key": "one"}).json["id"] for _ in range(6)]
        whole = ask(before, "POST", CHAT, HI | {"forkable": True}).json["id"]
        forks = [ask(before, "POST", CHAT, {"fork": {"of": whole}, "max_tokens": 1}).status for _ in range(6)]
        assert (len(set(made)), forks) == (1, [200] * 6)

        with ThreadPoolExecutor(12) as clients:
            grouped = [clients.submit(ask, before, "POST", CHAT, HI | {"max_tokens": 2000}, {"X-Group-Id": "g"})
                       for _ in range(12)]  # fmt: skip
            behind.wait_metric("running", 4)
            eventually(lambda: n_queued(short_tmp / "a") == 8, what="all others wait")
            n_running = {behind.metric("running") for _ in range(20)}
            aborted = ask(before, "DELETE", "/v1/groups/g").json

        assert n_running == {4}
        assert aborted["n_requests"] == 12
        assert {one.result().error["code"] for one in grouped} == {"group_aborted"}
        behind.wait_idle()
        assert [ask(before, "POST", CHAT, HI).status for _ in range(6)] == [200] * 6


def n_queued(run_dir: Path) -> int:
    queues = [queue for client in managed(run_dir) for queue in client.call("GET", "/v1/queues")["queues"]]
    return sum(queue["depth"] for queue in queues)


RESPONSE: dict[str, Any] = {"model": "m", "input": "hi", "max_output_tokens": 16}


def test_a_response_is_found_at_the_upstream_that_keeps_it_whichever_front_is_asked_also_when_all_were_replaced(
    tmp_path: Path, short_tmp: Path, cache: Path
) -> None:
    with redis_server() as redis, servers(tmp_path, cache) as started:
        behind = [started.start(*SERVE, model="m=synthetic:", ctx=4096) for _ in range(2)]
        before = started.start(
            *SERVE, "-w", "3", run_dir=short_tmp / "a", COROSRV_MODEL="", redis_url=redis.url,
            upstream=" ".join(f"http://127.0.0.1:{server.port}" for server in behind), upstream_policy="round_robin",
        )  # fmt: skip
        wait_fronts(short_tmp / "a")
        senders = [{}, {"Authorization": "Bearer none"}, {"Authorization": "Bearer other"}]
        ids = [ask(before, "POST", "/v1/responses", RESPONSE, senders[n % 3]).json["id"] for n in range(6)]

        def statuses(method: str = "GET", action: str = "", body: Any = None) -> set[int]:
            asked = [(id, sender) for id in ids for sender in senders]
            return {ask(before, method, f"/v1/responses/{id}{action}", body, sender).status for id, sender in asked}

        def follow(id: str) -> Answer:
            return ask(before, "POST", "/v1/responses", RESPONSE | {"previous_response_id": id})

        assert (statuses(), statuses(action="/input_items")) == ({200}, {200})
        assert [follow(id).json["previous_response_id"] for id in ids] == ids
        old = before.workers()
        for pid in old:
            Process(pid).kill()
        eventually(lambda: len(new := before.workers()) == 3 and not {*new} & {*old}, what="other fronts")
        wait_fronts(short_tmp / "a")
        assert statuses() == {200}
        assert [follow(id).json["previous_response_id"] for id in ids] == ids
        assert [ask(before, "DELETE", f"/v1/responses/{id}").status for id in ids] == [200] * 6
        assert statuses() == {404}


def test_a_response_is_found_at_the_peer_that_has_made_it_whichever_front_of_both_is_asked(
    tmp_path: Path, short_tmp: Path, cache: Path
) -> None:
    ports = [free_port() for _ in range(3)]
    with servers(tmp_path, cache) as started:
        (short_tmp / "c").mkdir(mode=0o700)
        here, *there = (
            started.start(
                "corosrv", "serve", "--port", str(port), "-w", "2", run_dir=short_tmp / name, strict_model=1, ctx=4096,
                model=f"{model}=synthetic:?tokens_per_s=100", peer_token=TOKEN, replica_id=name,
                peers=" ".join(f"http://127.0.0.1:{other}" for other in ports if other != port),
            )
            for name, model, port in zip("abc", ("own", "m", "m"), ports, strict=True)
        )  # fmt: skip
        eventually(
            lambda: {ask(here, "POST", CHAT, HI | {"model": "m"}).headers["x-corosrv-served-by"] for _ in range(12)}
            == {"b", "c"},
            START_SECONDS, "both peers",
        )  # fmt: skip
        made = [ask(here, "POST", "/v1/responses", RESPONSE) for _ in range(6)]
        ids, makers = [each.json["id"] for each in made], [each.headers["x-corosrv-served-by"] for each in made]
        assert {*makers} == {"b", "c"}

        found = [ask(here, "GET", f"/v1/responses/{id}") for id in ids]
        follows = [ask(here, "POST", "/v1/responses", RESPONSE | {"previous_response_id": id}) for id in ids]

        assert [each.json["id"] for each in found] == ids
        assert [each.headers["x-corosrv-served-by"] for each in (*found, *follows)] == makers * 2
        assert [each.json["previous_response_id"] for each in follows] == ids
        assert [ask(here, "DELETE", f"/v1/responses/{id}").status for id in ids] == [200] * 6
        assert {ask(at, "GET", f"/v1/responses/{id}").status for id in ids for at in (here, *there)} == {404}


def test_the_routers_paths_reach_all_fronts(tmp_path: Path, short_tmp: Path, cache: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-token\n")
    operator = {"Authorization": "Bearer the-token"}
    with redis_server() as redis, servers(tmp_path, cache) as started:
        behind = started.start(*SERVE, model="m=synthetic:?tokens_per_s=50", slots=8)
        before = started.start(
            *SERVE, "-w", "3", run_dir=short_tmp / "a", COROSRV_MODEL="", redis_url=redis.url, router_paths=1,
            mgmt_token_file=token, upstream=f"http://127.0.0.1:{behind.port}?concurrency=8",
        )  # fmt: skip
        wait_fronts(short_tmp / "a")
        own, other = f"http://127.0.0.1:{behind.port}", "http://127.0.0.1:1"

        def listed() -> set[tuple[str, ...]]:
            return {tuple(ask(before, "GET", "/list_workers", None, operator).json["urls"]) for _ in range(9)}

        assert ask(before, "POST", f"/add_worker?url={other}", None, operator).status == 200
        assert listed() == {(own, other)}
        assert ask(before, "POST", f"/remove_worker?url={other}", None, operator).status == 200
        assert listed() == {(own,)}

        with ThreadPoolExecutor(6) as clients:
            asking = [clients.submit(ask, before, "POST", CHAT, HI | {"max_tokens": 2000}) for _ in range(6)]
            behind.wait_metric("running", 6)
            loads = [ask(before, "GET", "/get_loads", None, operator).json["workers"] for _ in range(4)]
            aborted = ask(before, "POST", "/abort_request", {"abort_all": True}, operator)
            statuses = {one.result().status for one in asking}

    assert loads == [[{"worker": own, "load": 6}]] * 4
    assert aborted.json == {"aborted": 6}
    assert 200 not in statuses


def test_upstreams_of_run_time_are_known_to_processes_that_take_others_places(
    tmp_path: Path, short_tmp: Path, cache: Path
) -> None:
    with redis_server() as redis, servers(tmp_path, cache) as started:
        behind = [started.start(*SERVE, model="m=synthetic:") for _ in range(3)]
        first, second, third = (f"http://127.0.0.1:{server.port}" for server in behind)
        run_dir = short_tmp / "a"
        before = started.start(
            *SERVE, "-w", "3", run_dir=run_dir, COROSRV_MODEL="", redis_url=redis.url, upstream=f"{first} {second}",
        )  # fmt: skip

        def listed() -> list[list[tuple[str, int]]]:
            return [
                [(one["url"], one["concurrency"]) for one in client.call("GET", "/workers")["workers"]]
                for client in managed(run_dir)
            ]

        def replace(pids: list[int], how: Callable[[], object]) -> None:
            how()
            eventually(lambda: not {*before.workers()} & {*pids}, START_SECONDS, "other processes")
            wait_fronts(run_dir)

        wait_fronts(run_dir)
        managed(run_dir)[0].call("POST", "/workers", {"url": third, "concurrency": 5})
        managed(run_dir)[1].call("DELETE", f"/workers/{quote(first, safe='')}")
        managed(run_dir)[2].call("DELETE", f"/workers/{quote(second, safe='')}")
        eventually(lambda: listed() == [[(third, 5)]] * 3, what="all to follow")
        managed(run_dir)[0].call("POST", "/workers", {"url": second, "concurrency": 2})
        eventually(lambda: listed() == [[(third, 5), (second, 2)]] * 3, what="all to follow")

        for n in (1, 3):
            victims = before.workers()[:n]
            replace(victims, lambda victims=victims: [os.kill(pid, signal.SIGKILL) for pid in victims])
            assert listed() == [[(third, 5), (second, 2)]] * 3
        replace(before.workers(), lambda: before.signal(signal.SIGHUP))
        assert listed() == [[(third, 5), (second, 2)]] * 3
        assert {ask(before, "POST", CHAT, HI).status for _ in range(6)} == {200}
        assert before.log.count(f"leaves: {first}\n") == 3  # in the first processes: later ones do not begin with it
        before.stop()

        later = started.start(*SERVE, run_dir=run_dir, COROSRV_MODEL="", upstream=first)
        eventually(lambda: len(managed(run_dir)) == 1, START_SECONDS, "its end")
        assert [url for url, _ in listed()[0]] == [first]
        assert not list(run_dir.glob("*.upstreams")), later.log


def test_peers_of_several_fronts_answer_for_each_other_and_one_of_them_may_die(
    tmp_path: Path, short_tmp: Path, cache: Path
) -> None:
    ports = [free_port(), free_port()]
    with servers(tmp_path, cache) as started:
        here, there = (
            started.start(
                "corosrv", "serve", "--port", str(own), "-w", "2", run_dir=short_tmp / name, strict_model=1,
                model=f"{name}=synthetic:?tokens_per_s=100", peers=f"http://127.0.0.1:{other}", peer_token=TOKEN,
            )
            for name, own, other in (("a", *ports), ("b", *reversed(ports)))
        )  # fmt: skip

        def statuses() -> set[int]:
            asked = ((here, "b"), (there, "a")) * 6
            return {ask(server, "POST", CHAT, HI | {"model": name}).status for server, name in asked}

        eventually(lambda: statuses() == {200}, START_SECONDS, "each front of both to know its peer")
        served_by = {ask(here, "POST", CHAT, HI | {"model": "b"}).headers["x-corosrv-served-by"] for _ in range(8)}
        assert len(served_by) == 1

        victim = Process(there.workers()[0])
        victim.kill()
        eventually(lambda: victim.pid not in there.workers(), what="its end")
        assert statuses() == {200}
