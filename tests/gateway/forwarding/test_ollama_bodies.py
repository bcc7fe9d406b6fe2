"""Ollama's requests as OpenAI's API has them, for upstreams, and their answers as Ollama's clients read them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from corosrv.base.errors import NotSupported, Refused, WorkerLost
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, InferEnd, InferItem
from corosrv.dialects.ollama import schema
from corosrv.gateway.forwarding import ollama_bodies
from corosrv.gateway.forwarding.ollama import OllamaReader
from corosrv.gateway.forwarding.ollama_bodies import LineJoin, OllamaTranslation

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2}
STREAM = [("Content-Type", "text/event-stream"), ("X-Of-It", "1")]
JSON = [("Content-Type", "application/json")]


def chat(*messages: dict[str, Any], **sent: Any) -> dict[str, Any]:
    body = json.dumps({"model": "a:latest", "messages": messages or [{"role": "user", "content": "Hi"}], **sent})
    return sent_on(ollama_bodies.chat_request(schema.chat_decoder.decode(body), "a"))


def text(**sent: Any) -> dict[str, Any]:
    body = json.dumps({"model": "a", "prompt": "Hi", **sent})
    return sent_on(ollama_bodies.text_request(schema.generate_decoder.decode(body), "a"))


def sent_on(request: ollama_bodies.TranslatedRequest) -> dict[str, Any]:
    return {"path": request.path, **json.loads(request.body)}


class ScriptedReader:
    """Gives items, each on its own, until it is cancelled."""

    def __init__(self, *items: InferItem) -> None:
        self._items = [*items]
        self.is_cancelled = False

    @property
    def is_finished(self) -> bool:
        return not self._items

    def take(self, timeout: float | None = None) -> list[InferItem]:
        return [self._items.pop(0)]

    def cancel(self) -> None:
        self.is_cancelled = True
        self._items = [InferEnd(None)]


def event(finish: str | None = None, **delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


def read(status: int, headers: list[tuple[str, str]], *pieces: bytes, error: Any = None) -> list[InferItem]:
    """Reads an upstream's answer to a chat to its end."""
    translation = OllamaTranslation("a:latest", True)
    bodies = [AnswerBody(data=piece) for piece in pieces]
    source = ScriptedReader(AnswerHead(status=status, headers=tuple(headers)), *bodies, InferEnd(error))
    reader = OllamaReader(source, translation.answer, LineJoin(translation, is_chat=True))  # type: ignore[arg-type]
    items: list[InferItem] = []
    while not reader.is_finished:
        items += reader.take()
    return items


def lines(items: list[InferItem]) -> list[dict[str, Any]]:
    data = b"".join(item.data for item in items if isinstance(item, AnswerBody))
    return [json.loads(line) for line in data.splitlines()]


def test_a_chat_becomes_one_of_openais_api():
    asked = chat(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?", "images": ["iVBORw0K"]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"at": 1}}}]},
        {"role": "tool", "content": "a cat"},
        tools=[TOOL],
        options={"num_predict": 5, "temperature": 0, "top_k": 3, "num_ctx": 99, "stop": ["x"]},
        think=False,
        format={"type": "object"},
    )

    picture, words = asked["messages"][1]["content"]
    assert picture["image_url"]["url"] == "data:image/png;base64,iVBORw0K"
    assert words == {"type": "text", "text": "What is it?"}
    (call,) = asked["messages"][2]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at":1}'}
    assert asked["messages"][3]["tool_call_id"] == call["id"]
    assert asked["tools"][0]["function"]["name"] == "look"
    assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    options = {name: asked[name] for name in ("path", "model", "max_tokens", "temperature", "top_k", "stop", "stream")}
    assert options == {
        "path": "/v1/chat/completions",
        "model": "a",
        "max_tokens": 5,
        "temperature": 0,
        "top_k": 3,
        "stop": ["x"],
        "stream": True,
    }
    assert "num_ctx" not in asked


def test_a_prompt_is_a_conversation_unless_no_template_is_wanted():
    assert text(system="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    raw = text(raw=True, stream=False, options={"num_predict": -1})
    assert (raw["path"], raw["prompt"]) == ("/v1/completions", "Hi")
    assert raw.keys().isdisjoint({"stream", "max_tokens"})
    assert text(suffix="!")["suffix"] == "!"


@pytest.mark.parametrize(
    ("error", "sent", "word"),
    [
        (NotSupported, {"raw": True, "format": "json"}, "format"),
        (NotSupported, {"raw": True, "logprobs": True}, "logprobs"),
        (NotSupported, {"template": "x"}, "template"),
        (Refused, {"options": {"top_p": 3}}, "options.top_p"),
    ],
)
def test_what_cannot_go_on_is_refused_by_its_name(error: type[Refused], sent: dict[str, Any], word: str):
    with pytest.raises(error) as refused:
        text(**sent)

    assert str(refused.value).startswith(word)


@pytest.mark.parametrize("size", [1, 9, 10_000])
def test_a_stream_becomes_lines_with_calls_and_figures_at_the_end(size: int):
    data = (
        event(reasoning_content="Hm.")
        + event(content="A ")
        + event(content="cat")
        + event(tool_calls=[{"index": 0, **CALL}])
        + event("tool_calls")
        + b"data: "
        + json.dumps({"choices": [], "usage": USAGE, "timings": {"predicted_ms": 3}}).encode()
        + b"\n\ndata: [DONE]\n\n"
    )
    head, *rest = read(200, STREAM, *(data[i : i + size] for i in range(0, len(data), size)))

    assert isinstance(head, AnswerHead)
    assert dict(head.headers) == {"X-Of-It": "1", "Content-Type": "application/x-ndjson"}
    *pieces, called, last = lines(rest)
    assert [piece["message"]["content"] for piece in pieces] == ["", "A ", "cat"]
    assert pieces[0]["message"]["thinking"] == "Hm."
    assert called["message"]["tool_calls"] == [
        {"id": "c1", "function": {"name": "look", "arguments": {"at": 1}, "index": 0}}
    ]
    assert (last["done"], last["done_reason"], last["eval_count"], last["eval_duration"]) == (
        True,
        "stop",
        2,
        3_000_000,
    )
    assert {line["model"] for line in (*pieces, called, last)} == {"a:latest"}


def test_an_answer_that_is_whole_is_translated_whole():
    answer = {
        "choices": [{"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "length"}],
        "usage": USAGE,
    }
    head, body, end = read(200, JSON, json.dumps(answer).encode())

    assert (head.status, dict(head.headers)) == (200, dict(JSON))
    (told,) = lines([body])
    assert (told["message"]["content"], told["done_reason"], told["prompt_eval_count"]) == ("", "length", 7)
    assert told["message"]["tool_calls"][0]["function"]["arguments"] == {"at": 1}
    assert end == InferEnd(None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b"Bad Gateway", "Bad Gateway"),
        (b"[]", "the upstream failed, and did not say why"),
    ],
)
def test_errors_have_their_status_and_ollamas_form(body: bytes, words: str):
    head, *rest = read(418, JSON, body)

    assert (head.status, lines(rest)) == (418, [{"error": words}])


def test_an_error_in_a_stream_is_its_last_line():
    items = read(
        200, STREAM, event(content="A"), b'data: {"error": {"message": "out of memory"}}\n\n', event(content="B")
    )

    assert lines(items)[-1] == {"error": "out of memory"}
    assert len(lines(items)) == 2
    assert items[-1] == InferEnd(None)


@pytest.mark.parametrize(
    "pieces", [(event(content="A"),), (b"data: [1]\n\n",), (b'data: {"choices": [{"delta": {"content": 1}}]}\n\n',)]
)
def test_a_stream_that_breaks_off_or_is_none_ends_with_an_error(pieces: tuple[bytes, ...]):
    end = read(200, STREAM, *pieces)[-1]

    assert isinstance(end, InferEnd)
    assert isinstance(end.error, WorkerLost)


def test_an_answer_of_another_kind_is_an_error():
    (end,) = read(200, JSON, b'{"choices": []}')

    assert isinstance(end, InferEnd)
    assert isinstance(end.error, WorkerLost)


def test_vectors_come_in_order_and_of_length_1():
    answer = {"data": [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}], "usage": USAGE}
    translation = OllamaTranslation("a", False)

    made = msgspec.to_builtins(translation.vectors(answer))

    assert made["embeddings"] == [[0.6, 0.8], [0, 1]]
    assert made["prompt_eval_count"] == 7
    assert translation.vector(answer).embedding == [3, 4]
