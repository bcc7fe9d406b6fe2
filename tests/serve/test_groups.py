"""Groups of requests on a model that is served here: aborted together, with what there is so far or without."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, chat, events
from tests.support.waiting import eventually

LONG = 4000  # tokens, which take longer than any test


@pytest.fixture(scope="module")
def grouping(request: pytest.FixtureRequest) -> Server:
    """Two slots, two hundred tokens a second."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=2, model="synthetic:?tokens_per_s=200", ctx=16384)


@pytest.fixture(autouse=True)
def idle(grouping: Server) -> Iterator[None]:
    yield
    grouping.wait_idle()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def ask(server: Server, group: str, path: str = CHAT, key: str = "none", **fields: Any) -> Answer:
    headers = {"X-Group-Id": group, "Authorization": f"Bearer {key}", **fields.pop("headers", {})}
    body = fields.pop("body", None) or chat(**{"max_tokens": LONG, **fields})
    with server.connect(timeout=60) as connection:
        return connection.post(body, path, headers)


def long_chat(group: str) -> dict[str, Any]:
    """Returns the arguments of the official client for a long chat in this group."""
    messages = [{"role": "user", "content": "hi"}]
    headers = {"X-Group-Id": group}
    return {"model": "synthetic", "messages": messages, "max_tokens": LONG, "extra_headers": headers}


def abort(server: Server, group: str, query: str = "", key: str = "none") -> Answer:
    with server.connect() as connection:
        return connection.ask("DELETE", f"/v1/groups/{group}{query}", None, {"Authorization": f"Bearer {key}"})


def wait_running(server: Server, n: int, waiting: int = 0) -> None:
    """Returns once so many sequences run, each with a few tokens of text, and so many wait."""
    eventually(lambda: (server.metric("running"), server.metric("waiting")) == (n, waiting), 20, f"{n} running")
    generated = server.metric("generated_tokens_total")
    eventually(lambda: server.metric("generated_tokens_total") > generated + 10, 20, "tokens")


def test_an_abort_with_partial_answers_with_what_there_is(grouping: Server, pool: ThreadPoolExecutor):
    asked = pool.submit(ask, grouping, "g", n=2)
    wait_running(grouping, 2)

    aborted = abort(grouping, "g", "?partial=true")

    assert aborted.json == {"id": "g", "object": "group.aborted", "n_requests": 1, "partial": True}
    answer = asked.result(20)
    assert answer.status == 200
    assert [choice["finish_reason"] for choice in answer.json["choices"]] == ["abort", "abort"]
    assert all(choice["message"]["content"] for choice in answer.json["choices"])
    assert 0 < answer.json["usage"]["completion_tokens"] < 2 * LONG


def test_answers_that_wait_for_a_slot_end_at_once_and_are_empty(grouping: Server, pool: ThreadPoolExecutor):
    asked = pool.submit(ask, grouping, "g", n=3)
    wait_running(grouping, 2, waiting=1)

    abort(grouping, "g", "?partial=true")

    texts = [choice["message"]["content"] for choice in asked.result(20).json["choices"]]
    assert [bool(text) for text in texts].count(False) == 1


def test_an_abort_ends_all_requests_of_the_group_in_an_error(grouping: Server, pool: ThreadPoolExecutor):
    asked = [pool.submit(ask, grouping, "g") for _ in range(3)]
    wait_running(grouping, 2, waiting=1)

    aborted = abort(grouping, "g")

    assert aborted.json["n_requests"] == 3
    answers = [future.result(20) for future in asked]
    assert [(answer.status, answer.error["code"]) for answer in answers] == [(499, "group_aborted")] * 3


def test_others_go_on(grouping: Server, pool: ThreadPoolExecutor):
    asked = pool.submit(ask, grouping, "mine")
    kept = pool.submit(ask, grouping, "other", max_tokens=800)
    wait_running(grouping, 2)

    abort(grouping, "mine")

    assert asked.result(20).status == 499
    assert kept.result(20).json["choices"][0]["finish_reason"] == "length"


def test_a_group_of_another_key_is_not_there(start: Servers, pool: ThreadPoolExecutor):
    server = start.start(slots=2, model="synthetic:?tokens_per_s=20", ctx=16384, api_keys="one,two")
    asked = pool.submit(ask, server, "g", key="one")

    def theirs_is_never_there() -> bool:
        theirs = abort(server, "g", key="two")
        assert (theirs.status, theirs.error["code"]) == (404, "group_not_found")
        return abort(server, "g", key="one").status == 200

    eventually(theirs_is_never_there, 20, "a group")
    assert asked.result(20).status == 499


def test_a_stream_ends_with_its_finish_reason_or_with_an_error(grouping: Server, pool: ThreadPoolExecutor):
    asked = [pool.submit(ask, grouping, group, stream=True) for group in ("kept", "dropped")]
    wait_running(grouping, 2)

    abort(grouping, "kept", "?partial=1")
    abort(grouping, "dropped")

    kept, dropped = (events(future.result(20).body) for future in asked)
    assert kept[-1] == "[DONE]"
    assert kept[-2]["choices"][0]["finish_reason"] == "abort"
    assert dropped[-1]["error"]["code"] == "group_aborted"


def test_a_text_completion_is_answered_partially_as_well(grouping: Server, pool: ThreadPoolExecutor):
    body = {"prompt": ["Once", "Twice"], "max_tokens": LONG}
    asked = pool.submit(ask, grouping, "g", "/v1/completions", body=body)
    wait_running(grouping, 2)

    abort(grouping, "g", "?partial=true")

    choices = asked.result(20).json["choices"]
    assert [(choice["finish_reason"], bool(choice["text"])) for choice in choices] == [("abort", True)] * 2


def test_a_partial_answer_is_not_kept_under_its_idempotency_key(grouping: Server, pool: ThreadPoolExecutor):
    key = {"Idempotency-Key": "k"}
    asked = pool.submit(ask, grouping, "g", headers=key, max_tokens=800)
    wait_running(grouping, 1)
    abort(grouping, "g", "?partial=true")
    assert asked.result(20).json["choices"][0]["finish_reason"] == "abort"

    again = ask(grouping, "g", headers=key, max_tokens=800)

    assert again.json["choices"][0]["finish_reason"] == "length"
    assert "idempotency-replayed" not in again.headers


def test_the_openai_client_reads_a_partial_answer(grouping: Server, pool: ThreadPoolExecutor):
    with grouping.client() as client:
        asked = pool.submit(client.chat.completions.create, **long_chat("g"))
        wait_running(grouping, 1)

        abort(grouping, "g", "?partial=true")

        choice = asked.result(20).choices[0]
    assert (choice.finish_reason, bool(choice.message.content)) == ("abort", True)


def test_the_openai_client_does_not_repeat_what_was_aborted(grouping: Server, pool: ThreadPoolExecutor):
    with grouping.client(max_retries=2) as client:
        asked = pool.submit(client.chat.completions.create, **long_chat("g"))
        wait_running(grouping, 1)

        abort(grouping, "g")

        with pytest.raises(openai.APIStatusError, match="was aborted"):
            asked.result(20)
    assert grouping.metric("running") == 0


def test_an_ended_group_is_gone(grouping: Server):
    assert ask(grouping, "g", max_tokens=2).status == 200

    assert abort(grouping, "g").status == 404


@pytest.mark.parametrize("query", ["?partial=perhaps"])
def test_a_wrong_query_is_refused(grouping: Server, query: str):
    answer = abort(grouping, "g", query)

    assert (answer.status, answer.error["param"]) == (400, "partial")


def test_a_wrong_name_is_refused(grouping: Server):
    answer = ask(grouping, "a b")

    assert (answer.status, answer.error["param"]) == (400, "X-Group-Id")


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": LONG},
            ("stop_reason", "abort"),
        ),
        ("/v1/responses", {"input": "hi", "max_output_tokens": LONG}, ("incomplete_details", {"reason": "abort"})),
        ("/completion", {"prompt": "hi", "n_predict": LONG}, ("stop_type", "abort")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_dialect_answers_an_abort_with_what_there_is(
    grouping: Server, pool: ThreadPoolExecutor, path: str, body: dict[str, Any], reason: tuple[str, Any], stream: bool
):
    asked = pool.submit(ask, grouping, "g", path, body={**body, "stream": stream})
    wait_running(grouping, 1)

    abort(grouping, "g", "?partial=true")

    answer = asked.result(20)
    assert answer.status == 200
    if stream:
        assert b"abort" in answer.body
        assert b"group_aborted" not in answer.body
    else:
        assert answer.json[reason[0]] == reason[1]
