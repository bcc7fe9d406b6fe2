"""A server that has a model of its own beside upstreams: who answers what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.serve.fronts import ServerFront, front
from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, chat, request
from tests.support.scripted_upstream import ScriptedUpstream, fails_with, scripted
from tests.support.waiting import eventually

LOCAL = "small=synthetic:?tokens_per_s=50"


@pytest.fixture(scope="module")
def other() -> Iterator[ScriptedUpstream]:
    """An upstream that tells by its status that it was asked."""
    with scripted(fails_with(418), ("small", "large")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def beside(request: pytest.FixtureRequest, other: ScriptedUpstream) -> Iterator[ServerFront]:
    """One slot of its own, and a bound of one job that may wait for it."""
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, other.url, model=LOCAL, slots=1, ctx=4096) as started:
        started.wait_state("ready")
        eventually(lambda: len(started.server.get("/v1/models")[1]["data"]) == 2, what="both models")
        yield started


def ask(beside: ServerFront, path: str = CHAT, **fields: object) -> Answer:
    with beside.server.connect() as connection:
        return connection.post(chat(max_tokens=2, **fields), path)


def test_a_model_that_only_upstreams_have_is_asked_there(beside: ServerFront):
    assert ask(beside, model="large").status == 418
    assert ask(beside, "/v1/messages", model="large").status == 418
    assert ask(beside, "/api/chat", model="large:latest").status == 418


def test_a_model_that_both_have_is_asked_here_while_there_is_room(beside: ServerFront):
    assert ask(beside, model="small").json["model"] == "small"
    assert ask(beside, "/v1/messages", model="small").json["type"] == "message"
    assert ask(beside, "/completion", model="small", prompt="Once", n_predict=2).json["content"]
    assert ask(beside).json["model"] == "small"
    few = {"num_predict": 2}
    assert ask(beside, "/api/chat", model="small:latest", stream=False, options=few).json["done"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat"])
def test_a_model_that_nobody_has_is_not_found(beside: ServerFront, path: str):
    assert ask(beside, path, model="huge").status == 404


def test_a_body_that_is_no_object_is_refused_as_without_upstreams(beside: ServerFront):
    with beside.server.connect() as connection:
        assert connection.post(b"[]", CHAT).error["message"].startswith("the body must be a JSON object")


def test_what_no_model_here_answers_goes_to_upstreams(beside: ServerFront):
    assert ask(beside, "/v1/score", model="large").status == 418


def test_requests_spill_over_when_more_wait_than_there_are_slots(beside: ServerFront):
    with ExitStack() as stack:
        for n_waiting in (0, 1, 2):
            connection = stack.enter_context(beside.server.connect())
            connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000)))
            beside.server.wait_metric("waiting", n_waiting)

        assert ask(beside, model="small").status == 418
    beside.server.wait_idle()
    assert ask(beside, model="small").status == 200


def test_the_list_has_all_models_once(beside: ServerFront):
    with beside.server.client() as client:
        assert [model.id for model in client.models.list()] == ["small", "large"]
        assert client.models.retrieve("large").owned_by == "corosrv"
        assert client.models.retrieve("small").id == "small"
    tags = beside.server.get("/api/tags")[1]["models"]
    assert [model["name"] for model in tags] == ["small:latest", "large:latest"]


def test_its_health_is_that_of_its_own_model(start: Servers):
    with front(start, "http://127.0.0.1:1", model=LOCAL) as started:
        assert started.upstream()["state"] == "probing"
        assert ask(started, model="small").status == 200


def test_a_crowded_model_keeps_its_requests_while_no_upstream_has_room(beside: ServerFront, other: ScriptedUpstream):
    with ExitStack() as stack:
        for n_waiting in (0, 1, 2):
            connection = stack.enter_context(beside.server.connect())
            connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000)))
            beside.server.wait_metric("waiting", n_waiting)
        beside.manage("DELETE", f"/workers/{other.url}")

        connection = stack.enter_context(beside.server.connect())
        connection.send(request("POST", CHAT, chat(model="small", max_tokens=2)))

        beside.server.wait_metric("waiting", 3)
