"""Groups of requests that are forwarded: kept on one upstream, and aborted with what there is so far."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from corosrv.client import rollout
from tests.serve.fronts import ServerFront, front
from tests.serve.server import Server, Servers
from tests.serve.test_groups import abort, ask
from tests.serve.wire import events
from tests.support.scripted_upstream import Handler, ScriptedUpstream, scripted
from tests.support.waiting import eventually

LONG = 4000  # tokens, which take longer than any test


@pytest.fixture(scope="module")
def upstream(request: pytest.FixtureRequest) -> Server:
    """Four slots, two hundred tokens a second."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=4, model="synthetic:?tokens_per_s=200", ctx=16384)


@pytest.fixture(scope="module")
def forwarding(request: pytest.FixtureRequest, upstream: Server) -> Iterator[ServerFront]:
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, f"http://127.0.0.1:{upstream.port}?concurrency=4") as started:
        yield started


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def wait_text(upstream: Server, n: int) -> None:
    """Returns once so many sequences run, each with a few tokens of text."""
    eventually(lambda: upstream.metric("running") == n, 20, f"{n} running")
    generated = upstream.metric("generated_tokens_total")
    eventually(lambda: upstream.metric("generated_tokens_total") > generated + 10 * n, 20, "tokens")


# Against a real upstream.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_answer_is_the_upstreams_own(forwarding: ServerFront, upstream: Server, path: str):
    prompt = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True} if "chat" in path else {"prompt": "hi"}
    body = {**prompt, "n": 2, "max_tokens": 5, "seed": 3, "temperature": 1.0}

    through, direct = (ask(server, "g", path, body=body).json for server in (forwarding.server, upstream))

    assert through["choices"] == direct["choices"]
    assert through["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"] == 10
    assert through["object"] == direct["object"]
    assert through.keys() >= direct.keys()


def test_an_abort_with_partial_answers_with_what_there_is(forwarding: ServerFront, upstream: Server, pool):
    asked = pool.submit(ask, forwarding.server, "g", n=2)
    wait_text(upstream, 2)

    assert abort(forwarding.server, "g", "?partial=true").json["n_requests"] == 1

    answer = asked.result(20)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert [choice["finish_reason"] for choice in answer.json["choices"]] == ["abort", "abort"]
    assert all(choice["message"]["content"] for choice in answer.json["choices"])
    upstream.wait_idle()


def stop_of(answer: dict[str, Any]) -> tuple[str, str]:
    """Returns the text of an answer and why it ended, whatever its dialect."""
    if "stop_type" in answer:
        return answer["content"], answer["stop_type"]
    if answer.get("type") == "message":
        return answer["content"][0]["text"], answer["stop_reason"]
    assert answer["status"] == answer["output"][0]["status"] == "incomplete"
    return answer["output"][0]["content"][0]["text"], answer["incomplete_details"]["reason"]


def hello(path: str, n: int) -> dict[str, Any]:
    """Makes a body for a path that is neither chat nor text, which asks for so many tokens."""
    if path == "/completion":
        return {"prompt": "hi", "n_predict": n, "seed": 3}
    if path == "/v1/messages":
        return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": n, "model": "m", "seed": 3}
    return {"input": "hi", "max_output_tokens": n, "store": False, "seed": 3}


OTHERS = ["/completion", "/v1/messages", "/v1/responses"]


@pytest.mark.parametrize("path", OTHERS)
def test_an_answer_of_another_dialect_is_the_upstreams_own(forwarding: ServerFront, upstream: Server, path: str):
    through, direct = (ask(server, "g", path, body=hello(path, 5)).json for server in (forwarding.server, upstream))

    def what_lasts(answer: dict[str, Any]) -> dict[str, Any]:
        changing = ("id", "created_at", "completed_at", "timings", "id_slot", "usage")
        kept = {name: value for name, value in answer.items() if name not in changing}
        if "output" in kept:
            kept["output"] = [{**item, "id": ""} for item in kept["output"]]
        return kept

    assert what_lasts(through) == what_lasts(direct)
    assert through.keys() == direct.keys()


@pytest.mark.parametrize("path", OTHERS)
def test_an_abort_with_partial_answers_in_each_dialect(forwarding: ServerFront, upstream: Server, pool, path: str):
    asked = pool.submit(ask, forwarding.server, "g", path, body=hello(path, LONG))
    wait_text(upstream, 1)

    assert abort(forwarding.server, "g", "?partial=true").json["n_requests"] == 1

    answer = asked.result(20)
    text, reason = stop_of(answer.json)
    assert (answer.status, reason) == (200, "abort")
    assert text
    assert answer.headers["content-type"] == "application/json"
    upstream.wait_idle()


def test_an_abort_ends_all_requests_at_the_upstream(forwarding: ServerFront, upstream: Server, pool):
    asked = [pool.submit(ask, forwarding.server, "g", stream=stream) for stream in (False, True)]
    wait_text(upstream, 2)

    assert abort(forwarding.server, "g").json["n_requests"] == 2

    whole, stream = (future.result(20) for future in asked)
    assert (whole.status, whole.error["code"]) == (499, "group_aborted")
    assert events(stream.body)[-1]["error"]["code"] == "group_aborted"
    upstream.wait_idle()


def test_requests_that_wait_in_the_queue_end_at_once_in_an_error(forwarding: ServerFront, upstream: Server, pool):
    others = [pool.submit(ask, forwarding.server, "others") for _ in range(4)]
    wait_text(upstream, 4)
    asked = pool.submit(ask, forwarding.server, "g")
    forwarding.wait_queued(1)

    abort(forwarding.server, "g", "?partial=true")

    answer = asked.result(20)
    assert (answer.status, answer.error["code"]) == (499, "group_aborted")
    abort(forwarding.server, "others")
    assert [future.result(20).status for future in others] == [499] * 4


def test_a_rollout_through_a_front_gets_partial_groups(forwarding: ServerFront, upstream: Server, pool):
    url = f"http://127.0.0.1:{forwarding.server.port}"
    with rollout(["hi"] * 9, 2, url=url, max_tokens=LONG, concurrency=2) as run:
        aborting = pool.submit(lambda: (wait_text(upstream, 4), run.abort(partial=True)))
        groups = list(run)
        aborting.result(20)

    assert (run.report.n_submitted, run.report.n_partial) == (2, 2)
    assert all(answer.text and answer.finish == "cancelled" for group in groups for answer in group.answers)
    upstream.wait_idle()


# Against upstreams that do as a test says.


def streaming(*values: Any) -> Any:
    def behave(handler: Handler) -> None:
        handler.begin_stream()
        for value in values:
            handler.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")
        handler.end_stream()

    return behave


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


@pytest.fixture(scope="module")
def scripts(request: pytest.FixtureRequest) -> Iterator[tuple[ServerFront, ScriptedUpstream, ScriptedUpstream]]:
    """A front of two upstreams, to one of which it sends all of a session, and of a group."""
    kept: Servers = request.getfixturevalue("_kept")
    with (
        scripted() as first,
        scripted() as second,
        front(kept, first.url, second.url, upstream_policy="sticky") as started,
    ):
        for number in range(2):
            started.wait_state("ready", number)
        yield started, first, second


def test_requests_of_a_group_go_to_one_upstream_and_groups_to_both(scripts):
    started, *upstreams = scripts
    for upstream in upstreams:
        upstream.behaviour = streaming(piece("a", "stop"))
        upstream.requests.clear()

    for number in (*range(33), *range(33)):  # an odd number, so that taking turns would not do
        assert ask(started.server, f"group-{number}", model="m").status == 200

    groups = [{headers["X-Group-Id"] for _, headers, _ in upstream.requests} for upstream in upstreams]
    assert groups[0].isdisjoint(groups[1])
    assert all(groups)


def test_an_answer_that_is_no_stream_after_all_is_passed_on(scripts):
    started, *upstreams = scripts
    for upstream in upstreams:
        upstream.behaviour = lambda handler: handler.answer(200, {"choices": [], "asked": json.loads(handler.body)})

    answer = ask(started.server, "g", model="m", n=2, stream_options=None)

    assert answer.json["asked"]["stream"] is True
    assert answer.json["asked"]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([piece("a")], 502),
        ([piece("a"), {"error": {"message": "broke"}}], 502),
        (["text"], 502),
        ([piece("a"), piece("b", "stop")], 200),
    ],
)
def test_a_stream_that_breaks_off_is_no_answer(scripts, values: list[Any], status: int):
    started, *upstreams = scripts
    for upstream in upstreams:
        upstream.behaviour = streaming(*values)

    assert ask(started.server, "g", model="m").status == status
