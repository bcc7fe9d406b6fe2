"""Answers forked at any token, on SmolLM2: what branches say, what they compute, and what cannot be forked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, chat, request

TEXT = "/v1/completions"
STORY = "Tell me a story about a fox and a river."
N_TOKENS = 40


def ask(server: Server, body: dict[str, Any], path: str = CHAT, key: str = "none", **headers: str) -> Answer:
    with server.connect(timeout=120) as connection:
        return connection.post(body, path, {"Authorization": f"Bearer {key}", **headers})


def told(server: Server, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    answer = ask(server, body, path)
    assert answer.status == 200, answer.body
    members: dict[str, Any] = answer.json
    return members


def fork(of: str, at: int | None = None, n: int = 1, **fields: Any) -> dict[str, Any]:
    return {"fork": {"of": of, "at": at, "n": n}, "temperature": 0, "max_tokens": 8, **fields}


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


@pytest.fixture(scope="module")
def story(real: Server) -> dict[str, Any]:
    """A greedy chat, ended, that can be forked."""
    return told(real, chat(STORY, temperature=0, max_tokens=N_TOKENS, forkable=True, logprobs=True))


def tokens(answer: dict[str, Any]) -> list[str]:
    return [token["token"] for token in answer["choices"][0]["logprobs"]["content"]]


pytestmark = pytest.mark.model


@pytest.mark.parametrize("at", [0, 1, 7, N_TOKENS - 1])
def test_a_greedy_fork_says_what_the_answer_says_behind_it(real: Server, story: dict[str, Any], at: int) -> None:
    branch = told(real, fork(story["id"], at, max_tokens=N_TOKENS - at))

    assert texts(branch) == ["".join(tokens(story)[at:])]
    n_prompt = story["usage"]["prompt_tokens"] + at
    assert branch["usage"]["prompt_tokens"] == n_prompt
    assert branch["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1


def test_branches_go_on_behind_all_that_there_is(real: Server, story: dict[str, Any]) -> None:
    longer = told(real, chat(STORY, temperature=0, max_tokens=N_TOKENS + 8))

    assert texts(told(real, fork(story["id"]))) == [texts(longer)[0].removeprefix(texts(story)[0])]


def test_branches_draw_for_themselves(real: Server, story: dict[str, Any]) -> None:
    drawn = [told(real, fork(story["id"], 5, 4, temperature=1.5, seed=seed)) for seed in (1, 2)]

    assert [choice["index"] for choice in drawn[0]["choices"]] == [0, 1, 2, 3]
    assert len({*texts(drawn[0]), *texts(drawn[1])}) > 4
    assert drawn[0]["usage"]["prompt_tokens_details"]["cached_tokens"] == drawn[0]["usage"]["prompt_tokens"] - 1


def test_a_branch_has_a_form_of_its_own(real: Server, story: dict[str, Any]) -> None:
    branch = told(real, fork(story["id"], 9, structured_outputs={"choice": ["river", "brook"]}))

    assert texts(branch)[0] in ("river", "brook")


def test_a_branch_calls_a_tool_that_its_answer_knew_nothing_of(real: Server, story: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}

    choice = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    branch = told(real, fork(story["id"], 9, max_tokens=200, temperature=0, **choice))

    (call,) = branch["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "note"


def test_a_branch_can_be_forked(real: Server, story: dict[str, Any]) -> None:
    drawn = told(real, fork(story["id"], 5, 2, temperature=1.5, seed=3, forkable=True, logprobs=True))
    seen = [token["token"] for token in drawn["choices"][1]["logprobs"]["content"]]

    again = told(real, {"fork": {"of": drawn["id"], "at": 3, "choice": 1}, "max_tokens": 5, "temperature": 1.5})

    n_prompt = story["usage"]["prompt_tokens"] + 5 + 3
    assert again["usage"]["prompt_tokens"] == n_prompt
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    assert len(seen) == 8


def events(server: Server, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with server.connect(timeout=120) as connection:
        connection.send(request("POST", CHAT, {**body, "stream": True}))
        assert connection.head().status == 200
        for piece in connection.pieces():
            for event in piece.split(b"\n\n"):
                if event.startswith(b"data: {"):
                    yield json.loads(event.removeprefix(b"data: "))


def test_a_stream_is_forked_while_it_runs(real: Server, story: dict[str, Any]) -> None:
    stream = events(real, chat(STORY, temperature=0, max_tokens=900, ignore_eos=True, forkable=True))
    with_text = (event for event in stream if event["choices"][0]["delta"].get("content"))
    heard = [next(with_text) for _ in range(20)]

    branches = told(real, fork(heard[0]["id"], 12, 2))
    assert real.metric("running") == 1  # the stream goes on
    stream.close()

    assert texts(branches) == ["".join(tokens(story)[12:20])] * 2
    n_prompt = branches["usage"]["prompt_tokens"]
    assert branches["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    real.wait_idle()


def test_an_answer_that_its_client_has_left_can_be_forked(real: Server, story: dict[str, Any]) -> None:
    stream = events(real, chat(STORY, temperature=0, max_tokens=300, ignore_eos=True, forkable=True))
    heard = [next(stream) for _ in range(20)]
    stream.close()
    real.wait_idle()

    branch = told(real, fork(heard[0]["id"], 12))

    assert texts(branch) == ["".join(tokens(story)[12:20])]


def test_text_completions_fork_chats_and_each_other(real: Server, story: dict[str, Any]) -> None:
    text = told(real, {"prompt": "One, two, three,", "max_tokens": 12, "temperature": 0, "forkable": True}, TEXT)

    of_text = told(real, fork(text["id"], 4), TEXT)["choices"][0]["text"]
    of_chat = told(real, fork(story["id"], 4), TEXT)["choices"][0]["text"]

    whole = text["choices"][0]["text"]
    assert whole.endswith(of_text)
    assert 0 < len(of_text) < len(whole)
    assert of_chat == "".join(tokens(story)[4:12])


def test_a_character_that_is_cut_is_told_whole(real: Server) -> None:
    body = {"prompt": "say", "temperature": 0, "forkable": True, "logprobs": 0}
    form = {"structured_outputs": {"choice": ["a \N{PARTY POPPER} b"]}}
    text = told(real, {**body, **form}, TEXT)
    pieces = text["choices"][0]["logprobs"]["tokens"]
    cut = next(number for number, piece in enumerate(pieces, 1) if piece.startswith("bytes:"))
    biased = {"logit_bias": None, "max_tokens": len(pieces)}

    branch = told(real, {**fork(text["id"], cut), **biased}, TEXT)["choices"][0]["text"]
    refused = ask(real, {**fork(text["id"], cut), **form}, TEXT)

    assert not branch.startswith("a")
    assert branch[0] not in "\N{REPLACEMENT CHARACTER} "
    assert (refused.status, refused.error["param"]) == (400, "fork.at")


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"fork": {"of": "chatcmpl-unknown"}}, 404, "fork.of"),
        ({"fork": {"of": "ID", "at": N_TOKENS + 1}}, 400, "fork.at"),
        ({"fork": {"of": "ID", "at": -1}}, 400, "fork.at"),
        ({"fork": {"of": "ID", "at": 1.5}}, 400, "fork.at"),
        ({"fork": {"of": "ID", "at": "1"}}, 400, "fork.at"),
        ({"fork": {"of": "ID", "n": 0}}, 400, "fork.n"),
        ({"fork": {"of": "ID", "n": 129}}, 400, "fork.n"),
        ({"fork": {"of": "ID", "choice": 1}}, 400, "fork.choice"),
        ({"fork": {"of": "ID", "at_token": 1}}, 400, "fork"),
        ({"fork": {"at": 1}}, 400, "fork.of"),
        ({"fork": "ID"}, 400, "fork"),
        ({"fork": {"of": "ID", "n": 2}, "n": 3}, 400, "n"),
        ({"fork": {"of": "ID"}, "messages": [{"role": "user", "content": "hi"}]}, 400, "messages"),
        ({"fork": {"of": "ID"}, "echo": True}, 400, "echo"),
        ({"fork": {"of": "ID"}, "cache_prompt": False}, 400, "cache_prompt"),
        ({"fork": {"of": "ID"}, "lora": []}, 400, "lora"),
        ({"fork": {"of": "ID"}, "reasoning_effort": "none"}, 400, "reasoning_effort"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_by_its_field(
    real: Server, story: dict[str, Any], given: dict[str, Any], status: int, param: str
) -> None:
    body = json.loads(json.dumps(given).replace("ID", story["id"]))

    answer = ask(real, body)

    assert (answer.status, answer.error["param"]) == (status, param)


@pytest.mark.parametrize("field", ["prompt", "prompt_embeds", "suffix", "echo", "best_of"])
def test_a_fork_has_no_prompt_of_its_own(real: Server, story: dict[str, Any], field: str) -> None:
    values = {"prompt_embeds": {}, "echo": True, "best_of": 2}

    answer = ask(real, {**fork(story["id"]), field: values.get(field, "a")}, TEXT)

    assert (answer.status, answer.error["param"]) == (400, field)


def test_an_answer_that_did_not_ask_for_it_cannot_be_forked(real: Server) -> None:
    plain = told(real, chat("hi", max_tokens=2))

    assert ask(real, fork(plain["id"])).status == 404


def test_a_chat_does_not_go_on_from_a_text_completion(real: Server) -> None:
    text = told(real, {"prompt": "hi", "max_tokens": 2, "forkable": True}, TEXT)

    answer = ask(real, fork(text["id"]))

    assert (answer.status, answer.error["param"]) == (400, "fork.of")
    assert "/v1/completions" in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "model": "any"}),
        ("/completion", {"prompt": "a"}),
        ("/api/generate", {"prompt": "a", "model": "any"}),
    ],
)
def test_other_dialects_fork_nothing(real: Server, path: str, body: dict[str, Any]) -> None:
    for field in ({"fork": {"of": "a"}}, {"forkable": True}):
        answer = ask(real, {**body, **field}, path)

        assert answer.status == 400
        assert next(iter(field)) in answer.body.decode()


SYNTHETIC = "synthetic:?tokens_per_s=0&length=16"


def test_an_answer_of_another_key_is_not_there(start: Servers) -> None:
    server = start.start(model=SYNTHETIC, api_keys="one,two")
    mine = ask(server, chat(max_tokens=4, forkable=True), key="one").json["id"]

    theirs, nobodys = (ask(server, fork(id), key="two") for id in (mine, mine[:-1] + "x"))

    assert ask(server, fork(mine), key="one").status == 200
    assert (theirs.status, nobodys.status) == (404, 404)
    assert theirs.error["message"].replace(mine, "") == nobodys.error["message"].replace(mine[:-1] + "x", "")


def test_an_answer_of_a_model_that_was_unloaded_is_not_there(start: Servers) -> None:
    server = start.start(model="one=synthetic:?length=4,two=synthetic:?length=4")
    one = ask(server, chat(model="one", max_tokens=4, forkable=True)).json["id"]
    other = ask(server, fork(one, model="two"))
    assert ask(server, {"model": "one"}, "/models/unload").status == 200

    answer = ask(server, fork(one, model="one"))

    assert (other.status, other.error["param"]) == (400, "model")
    assert (answer.status, answer.error["param"]) == (404, "fork.of")
    assert "unloaded" in answer.error["message"]


def test_an_engine_in_its_own_process_is_forked_too(start: Servers) -> None:
    server = start.start(model="", ctx=512, slots=4, threads=1, engine="process")
    story = told(server, chat(STORY, temperature=0, max_tokens=16, forkable=True, logprobs=True))

    branches = told(server, fork(story["id"], 6, 2, max_tokens=10))

    assert texts(branches) == ["".join(tokens(story)[6:])] * 2
    assert branches["usage"]["prompt_tokens_details"]["cached_tokens"] == story["usage"]["prompt_tokens"] + 5
