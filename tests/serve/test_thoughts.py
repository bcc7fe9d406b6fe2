"""Thoughts over HTTP: apart from the text, or part of it, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.serve.server import APP, Server, Servers
from tests.serve.wire import chat, events

# The prompt opens the thoughts, and the made-up model never closes them.
THINKING = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>{% endif %}{# </think> #}"
)


@pytest.fixture
def thinker(start: Servers) -> Server:
    return start.start(chat_template=THINKING)


def answer(server: Server, **fields: Any) -> Any:
    with server.connect() as connection:
        return connection.post(chat(**{"max_tokens": 5} | fields)).json


def test_thoughts_are_split_joined_and_left_out_as_asked(thinker: Server) -> None:
    apart, joined, none = (
        answer(thinker, **fields)
        for fields in ({}, {"reasoning_format": "none"}, {"chat_template_kwargs": {"enable_thinking": False}})
    )

    message = apart["choices"][0]["message"]
    assert (message["content"], bool(message["reasoning_content"])) == ("", True)
    assert apart["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    for other in (joined, none):
        assert other["choices"][0]["message"]["content"]
        assert "reasoning_content" not in other["choices"][0]["message"]
        assert other["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert none["usage"]["prompt_tokens"] > apart["usage"]["prompt_tokens"], "the thoughts are closed in the prompt"


def test_thoughts_go_on_from_those_of_the_last_message(thinker: Server) -> None:
    asked = {"role": "user", "content": "hi"}
    begun = {"role": "assistant", "content": "", "reasoning_content": "Let me see"}
    first, whole, echoed = (
        answer(thinker, messages=messages, temperature=0, **fields)
        for messages, fields in (([asked], {}), ([asked, begun], {}), ([asked, begun], {"echo": True}))
    )

    assert whole["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    thoughts = [choice["message"]["reasoning_content"] for choice in (*whole["choices"], *echoed["choices"])]
    assert thoughts[1] == "Let me see" + thoughts[0]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    assert [choice["message"]["content"] for choice in whole["choices"]] == [""]


def test_thoughts_are_streamed_apart(thinker: Server) -> None:
    with thinker.connect() as connection:
        sent = events(connection.post(chat(max_tokens=5, stream=True)).body)

    deltas = [event["choices"][0]["delta"] for event in sent if isinstance(event, dict) and event["choices"]]
    assert sum("reasoning_content" in delta for delta in deltas) == 5
    assert not any(delta.get("content") for delta in deltas)


def test_a_stream_s_thoughts_end_at_their_budget_and_the_text_follows(thinker: Server) -> None:
    with thinker.connect() as connection:
        asked = chat(max_tokens=30, stream=True, stream_options={"include_usage": True}, thinking_budget_tokens=4)
        sent = [event for event in events(connection.post(asked).body) if isinstance(event, dict)]

    deltas = [event["choices"][0]["delta"] for event in sent if event["choices"]]
    kinds = [kind for delta in deltas for kind in ("reasoning_content", "content") if delta.get(kind)]
    assert kinds == sorted(kinds, reverse=True), "thoughts first, then text"
    assert len("".join(delta.get("reasoning_content") or "" for delta in deltas).split()) == 4
    assert "content" in kinds
    # The tokens of the end mark count as thoughts.
    assert sent[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4 + len("</think>")
    assert sent[-1]["usage"]["completion_tokens"] == 30


CONTROL = "/v1/chat/completions/control"
HI: Any = [{"role": "user", "content": "hi"}]
LONG = {"max_tokens": 400, "reasoning_control": True}


def end_thoughts(server: Server, id: str, key: str = "") -> dict[str, Any]:
    with server.connect() as connection:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = connection.ask("POST", CONTROL, {"id": id, "action": "reasoning_end"}, headers)
    assert answer.status == 200
    told: dict[str, Any] = answer.json
    return told


def stream_ended_by(client: openai.OpenAI, end: Callable[[str], None], **fields: Any) -> tuple[str, str, str]:
    """The id, the thoughts and the text of a stream, of which `end` is told after the tenth piece of thoughts."""
    thoughts, text, n_pieces, id = "", "", 0, ""
    stream = client.chat.completions.create(model="any", messages=HI, stream=True, extra_body={**LONG, **fields})
    for chunk in stream:
        delta = chunk.choices[0].delta
        id, n_pieces = chunk.id, n_pieces + 1
        thoughts += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
        if n_pieces == 10:
            end(id)
        if text:
            stream.close()
            break
    return id, thoughts, text


@pytest.mark.parametrize("engine", ["inproc", "process"])
def test_thoughts_end_when_their_client_says_so(start: Servers, engine: str) -> None:
    server = start.start(chat_template=THINKING, engine=engine)
    with server.client() as client:
        told: list[dict[str, Any]] = []
        id, thoughts, text = stream_ended_by(client, lambda id: told.append(end_thoughts(server, id)))
        _, with_words, _ = stream_ended_by(
            client, lambda id: told.append(end_thoughts(server, id)), reasoning_budget_message="So."
        )

    assert told == [{"success": True}] * 2
    assert text
    assert 9 <= len(thoughts.split()) < 200
    assert with_words.endswith("So.")
    server.wait_metric("running", 0)
    assert end_thoughts(server, id)["success"] is False, "its answer is over"


def test_thoughts_are_ended_by_their_own_key_and_where_that_was_asked_for_alone(start: Servers) -> None:
    server = start.start(chat_template=THINKING, api_keys="mine,yours", model="synthetic:?tokens_per_s=200")
    told: list[dict[str, Any]] = []
    with server.client("mine") as client:
        stream_ended_by(client, lambda id: told.append(end_thoughts(server, id, "yours")), max_tokens=40)
        stream_ended_by(
            client, lambda id: told.append(end_thoughts(server, id, "mine")), max_tokens=40, reasoning_control=False
        )

    assert [answer["success"] for answer in told] == [False, False]
    assert "reasoning_control" in told[1]["message"]


def test_another_worker_process_ends_thoughts_too(start: Servers) -> None:
    server = start.start(*APP, "-w", "2", chat_template=THINKING)
    told: list[dict[str, Any]] = []
    with server.client() as client:
        for _ in range(6):  # connections go to either process
            stream_ended_by(client, lambda id: told.append(end_thoughts(server, id)))

    assert told == [{"success": True}] * 6


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "id"),
        ({"id": "", "action": "reasoning_end"}, "id"),
        ({"id": 5, "action": "reasoning_end"}, "id"),
        ({"id": "x"}, "action"),
        ({"id": "x", "action": "stop"}, "action"),
    ],
)
def test_what_is_no_control_is_refused(server: Server, body: Any, param: str) -> None:
    with server.connect() as connection:
        answer = connection.post(body, CONTROL)

    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_message_s_thoughts_end_at_their_budget(thinker: Server) -> None:
    asked = {"max_tokens": 30, "messages": [{"role": "user", "content": "hi"}],
             "thinking": {"type": "enabled", "budget_tokens": 4}}  # fmt: skip
    with thinker.connect() as connection:
        answer = connection.post(asked, "/v1/messages").json

    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert len(answer["content"][0]["thinking"].split()) <= 4


def test_a_raw_prompt_s_thoughts_end_at_their_budget(thinker: Server) -> None:
    asked = {"prompt": "hi <think>", "thinking_budget_tokens": 4, "reasoning_budget_message": "So."}
    with thinker.connect() as connection:
        native = connection.post({**asked, "n_predict": 30}, "/completion").json["content"]
        openai = connection.post({**asked, "max_tokens": 30}, "/v1/completions").json["choices"][0]["text"]

    for text in (native, openai):
        thoughts, end, answer = text.partition("So.</think>")
        assert 0 < len(thoughts.split()) <= 4
        assert end
        assert answer


def test_a_response_s_thoughts_end_at_their_budget(thinker: Server) -> None:
    asked = {"input": "hi", "max_output_tokens": 30, "thinking_budget_tokens": 4}
    with thinker.connect() as connection:
        answer = connection.post(asked, "/v1/responses").json

    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert 0 < len(answer["output"][0]["content"][0]["text"].split()) <= 4


def test_the_server_s_budget_holds_for_chats_that_have_none_and_not_for_raw_prompts(start: Servers) -> None:
    server = start.start(chat_template=THINKING, reasoning_budget=3)
    with server.connect() as connection:
        chats = [connection.post(chat(max_tokens=30, **fields)).json for fields in ({}, {"reasoning_budget": 5})]
        raw = connection.post({"prompt": "hi <think>", "n_predict": 30}, "/completion").json["content"]

    n_words = [len(answer["choices"][0]["message"]["reasoning_content"].split()) for answer in chats]
    assert 0 < n_words[0] <= 3
    assert 3 < n_words[1] <= 5
    assert "</think>" not in raw


def test_thoughts_are_in_the_text_as_well_where_clients_look_for_them_there(start: Servers, thinker: Server) -> None:
    server = start.start(chat_template=THINKING, reasoning_format="deepseek-legacy")
    asked = {"max_tokens": 30, "thinking_budget_tokens": 4, "temperature": 0}

    message = answer(server, **asked)["choices"][0]["message"]
    other = answer(thinker, reasoning_format="deepseek-legacy", **asked)["choices"][0]["message"]
    apart = answer(server, reasoning_format="deepseek", **asked)["choices"][0]["message"]

    assert message["content"] == f"<think>{apart['reasoning_content']}</think>{apart['content']}"
    assert message["reasoning_content"] == apart["reasoning_content"]
    assert other == message
    assert apart["content"]


def test_streamed_thoughts_are_in_both_as_they_come_and_stay_open_where_they_are_cut(thinker: Server) -> None:
    asked = {"reasoning_format": "deepseek-legacy", "temperature": 0}
    texts = []
    for fields in ({"max_tokens": 30, "thinking_budget_tokens": 4}, {"max_tokens": 5}):
        whole = answer(thinker, **asked, **fields)["choices"][0]["message"]
        with thinker.connect() as connection:
            sent = events(connection.post(chat(stream=True, **asked, **fields)).body)
        deltas = [event["choices"][0]["delta"] for event in sent if isinstance(event, dict) and event["choices"]]

        for name in ("content", "reasoning_content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == whole[name]
        texts.append(whole["content"])

    assert "</think>" in texts[0]
    assert texts[1].startswith("<think>")
    assert "</think>" not in texts[1]
