"""Two real fronts that share one real Redis: who knows of whom, and what goes on without Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.clustered import ClusteredFronts, clustered_fronts
from tests.serve.server import SERVE, START_SECONDS, Server, Servers
from tests.serve.wire import CHAT, Answer, Connection, chat, request
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[ClusteredFronts]:
    with clustered_fronts(tmp_path_factory.mktemp("clustered"), cache) as fronts:
        yield fronts


def others(fronts: ClusteredFronts) -> list[dict[str, Any]]:
    """Returns what the second front knows of others."""
    shown: list[dict[str, Any]] = fronts.b.manage("GET", "/v1/fronts")["others"]
    return shown


def test_a_front_knows_what_the_other_serves(fronts: ClusteredFronts):
    eventually(lambda: others(fronts) and others(fronts)[0]["handlers"]["app"], START_SECONDS, "the other's handlers")

    (other,) = others(fronts)

    assert other["id"] == fronts.a.manage("GET", "/v1/fronts")["id"]
    assert "synthetic" in other["models"]
    assert any(key.startswith("model:") for key in other["handlers"]["app"])


def test_a_handler_of_one_front_is_called_by_way_of_its_peer(fronts: ClusteredFronts):
    server = fronts.b.server
    eventually(lambda: server.get("/v2/models/norm/ready")[0] == 200, START_SECONDS, "the other's handler is ready")

    with server.connect() as connection:
        point = {"name": "point", "datatype": "FP64", "shape": [2], "data": [3, 4]}
        answer = connection.post({"inputs": [point]}, "/v2/models/norm/infer")

    assert answer.json["outputs"][0]["data"] == [5.0]


def test_a_front_holds_few_connections(fronts: ClusteredFronts):
    assert fronts.redis.command("CLIENT", "LIST").count("name=") < 2 * 10


def ask(server: Server, key: str, **body: Any) -> Answer:
    """Asks for a chat under a key, once more while the key is told to be busy: what ended is written soon after."""

    def answer() -> Answer | None:
        with server.connect() as connection:
            answer = connection.post({**chat(max_tokens=3), **body}, CHAT, {"Idempotency-Key": key})
        return None if answer.status == 409 else answer

    return eventually(answer, 20, "an answer other than 409")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_key_that_was_sent_to_one_front_is_answered_by_the_other(fronts: ClusteredFronts, stream: bool):
    key = f"across-{stream}"
    first = ask(fronts.a.server, key, stream=stream)

    second = ask(fronts.b.server, key, stream=stream)

    assert second.headers["idempotency-replayed"] == "true"
    assert (second.status, second.body) == (200, first.body)
    assert ask(fronts.b.server, key, stream=stream, max_tokens=4).status == 422


def abort_if_there(connection: Connection, group: str) -> Answer | None:
    answer = connection.ask("DELETE", f"/v1/groups/{group}?partial=true")
    return answer if answer.status == 200 else None


def test_a_group_is_aborted_at_whichever_front_it_runs(fronts: ClusteredFronts):
    with fronts.a.server.connect() as asking, fronts.b.server.connect() as aborting:
        asking.send(request("POST", CHAT, chat(max_tokens=3000), {"X-Group-Id": "across"}))

        aborted = eventually(lambda: abort_if_there(aborting, "across"), what="the group at the other front")
        answer = asking.answer()

    assert aborted.json["n_requests"] == 1
    assert answer.json["choices"][0]["finish_reason"] == "abort"


def test_a_front_that_dies_while_it_runs_a_key_frees_it(fronts: ClusteredFronts):
    record = "corosrv:{default}:record::dying"
    body, key = {**chat(max_tokens=5000), "stream": True}, {"Idempotency-Key": "dying"}
    with fronts.a.server.connect() as running, fronts.b.server.connect() as other:
        running.send(request("POST", CHAT, body, key))
        eventually(lambda: ":1" in fronts.redis.command("EXISTS", record), 20, "a record")
        assert other.post(body, CHAT, key).status == 409

        fronts.a.server.worker.kill()
        fronts.redis.command("PEXPIRE", record, "1")  # as if its lease were over: nobody renews it
        status = eventually(lambda: _status_unless_409(fronts.b.server, body, key), 20, "a free key")

    assert status == 200


def _status_unless_409(server: Server, body: dict[str, Any], key: dict[str, str]) -> int | None:
    with server.connect() as connection:
        connection.send(request("POST", CHAT, body, key))
        status = connection.head().status
    return None if status == 409 else status


def test_health_and_metrics_say_that_redis_is_away_and_back_and_work_goes_on(fronts: ClusteredFronts):
    server = fronts.b.server
    eventually(lambda: server.metric("cluster_fronts") == 1, START_SECONDS, "the other front, started anew")
    assert server.get("/health")[1]["redis"] == "up"

    fronts.redis.kill()
    eventually(lambda: server.get("/health")[1]["redis"] == "down", what="redis down")
    with server.client() as client:
        chat = client.chat.completions.create(
            model="synthetic", messages=[{"role": "user", "content": "hi"}], max_tokens=2
        )
    status, _ = server.get("/health")
    fronts.redis.start()
    eventually(lambda: server.get("/health")[1]["redis"] == "up", what="redis up")

    assert chat.choices[0].message.content
    assert status == 200
    assert server.metric("redis_up") == 1
    eventually(lambda: len(others(fronts)) == 1, START_SECONDS, "the other front is registered again")
    assert server.log.count("is away") == server.metric("redis_losses_total") > 0  # once for each loss


def test_a_server_does_not_start_on_a_redis_that_evicts(start: Servers):
    with redis_server(maxmemory="10mb", maxmemory_policy="allkeys-lru") as redis:
        error = failed_start(start, redis.url)

    assert "maxmemory-policy allkeys-lru" in error


def test_a_server_does_not_start_with_a_wrong_password_and_shows_none(start: Servers):
    with redis_server(requirepass="right") as redis:
        error = failed_start(start, redis.url.replace("right", "s3cret"))

    assert "it refuses the user or password" in error
    assert "s3cret" not in error


def failed_start(start: Servers, url: str) -> str:
    """Returns the log of a server that must not start, once it has ended."""
    server = start.start(*SERVE, wait_for=None, redis_url=url)
    assert server.wait(START_SECONDS) == 1
    return server.log
