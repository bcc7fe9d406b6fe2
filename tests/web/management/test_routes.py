"""The management API on a real socket: what it shows, and what it does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from corosrv.base.errors import ManagementError, Unavailable
from corosrv.workers.manager.plan import PlaceState
from corosrv.workers.objects import ObjectContent
from tests.support.waiting import wait_until
from tests.web.management.serving import Management, listening
from tests.workers.manager.scripted import call, end_of, pool_card


@pytest.fixture
def server() -> Iterator[Management]:
    with listening(pool_card("default", "add", slots=2), pool_card("odd//names", "a//b/")) as management:
        wait_until(lambda: len(management.script.ids()) == 2)
        yield management


def refused(server: Management, method: str, target: str, body=None) -> str:
    with pytest.raises(ManagementError) as caught:
        server.call(method, target, body)
    return str(caught.value)


def test_workers_are_shown(server: Management):
    call(server.manager, "add")

    worker = server.call("GET", "/v1/workers")["workers"][0]

    assert {name: worker[name] for name in ("id", "pool", "pid", "incarnation", "state", "restarts")} == {
        "id": "default/0", "pool": "default", "pid": 1001, "incarnation": 1, "state": "ready", "restarts": 0,
    }  # fmt: skip
    assert worker["models"] == [{"name": "add", "version": ""}]
    assert (worker["in_flight"], worker["concurrency"], worker["served"], worker["failed"]) == (1, 2, 0, 0)
    assert worker == server.call("GET", "/v1/workers/default/0") | {"age_ms": worker["age_ms"]}


def test_a_worker_whose_name_has_slashes_is_found(server: Management):
    assert server.call("GET", f"/v1/workers/{quote('odd//names/0', safe='')}")["id"] == "odd//names/0"


def test_pools_are_shown_with_the_planners_words(server: Management):
    for _ in range(3):
        call(server.manager, "add")

    pool = server.call("GET", "/v1/pools")["pools"][0]

    assert (pool["name"], pool["min"], pool["max"], pool["target"], pool["workers"]) == (
        "default",
        1,
        1,
        1,
        {"ready": 1},
    )
    assert (pool["depth"], pool["crashlooping"]) == (1, False)
    assert pool["decision"] == "as many as it begins with"


def test_queues_are_shown(server: Management):
    for _ in range(3):
        call(server.manager, "add")

    queue = server.call("GET", "/v1/queues")["queues"][0]

    assert (queue["key"], queue["depth"], queue["in_flight"], queue["permits"]) == ("model:add:", 1, 2, 2)
    assert queue["max_depth"] == 64
    assert queue["oldest_ms"] >= 0


def test_nobody_registers_by_an_address(server: Management):
    assert "connection" in refused(server, "POST", "/v1/workers", {"address": "/tmp/mine.sock", "models": []})


def test_a_drained_worker_is_replaced(server: Management):
    answer = server.call("POST", "/v1/workers/default/0/drain")

    assert answer["is_outgoing"]
    wait_until(lambda: "default/1" in server.script.ids() and "default/0" not in server.script.ids())


def test_a_worker_is_removed_by_its_incarnation(server: Management):
    assert "not 2" in refused(server, "DELETE", "/v1/workers/default/0?incarnation=2")
    assert "incarnation must be" in refused(server, "DELETE", "/v1/workers/default/0")
    assert "incarnation must be" in refused(server, "DELETE", "/v1/workers/default/0?incarnation=-1")
    assert "there is no worker" in refused(server, "DELETE", "/v1/workers/default/9?incarnation=1")

    assert server.call("DELETE", "/v1/workers/default/0?incarnation=1") == {"removed": "default/0"}

    wait_until(lambda: server.manager.pool("default").places[0].incarnation == 2)
    wait_until(lambda: server.manager.pool("default").places[0].state is PlaceState.READY)


@pytest.mark.parametrize("model", ["add", "a//b/"])
def test_the_calls_of_a_queue_are_aborted(server: Management, model: str):
    readers = [call(server.manager, model) for _ in range(5)]
    n_running = 2 if model == "add" else 1

    answer = server.call("POST", f"/v1/queues/{quote(f'model:{model}:', safe='')}/abort")

    assert answer == {"aborted": 5 - n_running}
    assert isinstance(end_of(readers[-1]).error, Unavailable)
    assert "there is no queue" in refused(server, "POST", "/v1/queues/model:nothing:/abort")


def test_a_pool_is_scaled(server: Management):
    assert server.call("PUT", "/v1/pools/default", {"min": 2, "max": 3})["max"] == 3

    wait_until(lambda: len(server.script.ids()) == 3)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"min": 3, "max": 2}, "0 <= min <= max"),
        ({"min": -1, "max": 2}, "0 <= min <= max"),
        ({"min": 0, "max": 99_999}, "0 <= min <= max"),
        ({"min": 1}, "missing required field `max`"),
        ({"min": "1", "max": 2}, "Expected `int`, got `str` - at `$.min`"),
        ({"min": 1, "max": 2, "most": 3}, "unknown field `most`"),
        ([1, 2], "Expected `object`"),
        (None, "the body is wrong"),
        ({"min": 1, "max": 10**30}, "0 <= min <= max"),
        ({"min": 1, "max": 2, "more": "x" * 70_000}, "exceeds"),
    ],
)
def test_wrong_bodies_are_refused_and_change_nothing(server: Management, body, words: str):
    assert words in refused(server, "PUT", "/v1/pools/default", body)
    assert server.call("GET", "/v1/pools/default")["max"] == 1


@pytest.mark.parametrize(
    ("method", "target", "words"),
    [
        ("GET", "/v1/pools/nothing", "there is no pool 'nothing'"),
        ("PUT", "/v1/pools/nothing", "the body is wrong"),
        ("GET", "/v1/workers/nothing", "there is no worker 'nothing'"),
        ("POST", "/v1/workers/nothing/drain", "there is no worker 'nothing'"),
        ("GET", "/v1/nothing", "not found"),
        ("PATCH", "/v1/workers", "not allowed"),
    ],
)
def test_what_is_not_there_is_named(server: Management, method: str, target: str, words: str):
    assert words in refused(server, method, target)


def test_objects_are_shown_without_their_contents(server: Management):
    ref = server.objects.create(ObjectContent(b"secret"), "0" * 64, time.monotonic(), key="k")

    answer = server.call("GET", "/v1/objects")

    assert [shown["id"] for shown in answer["objects"]] == [ref.id]
    assert (answer["stats"]["n_objects"], answer["stats"]["n_bytes"]) == (1, 6)
    assert "secret" not in str(answer)
