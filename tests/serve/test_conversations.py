"""OpenAI's conversations and the logprobs of its responses, by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.serve.server import Server, Servers

HI: Any = {"role": "user", "content": "hi"}
ASK: dict[str, Any] = {"model": "synthetic", "max_output_tokens": 16}
LOGPROBS: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
PIXEL = "data:image/png;base64,iVBORw0KGgo="  # no model reads it here


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def said(client: openai.OpenAI, conversation: str) -> list[str]:
    """Returns the texts of a conversation, page by page."""
    items: Any = client.conversations.items.list(conversation, order="asc", limit=2)
    return [item.content[0].text for item in items]


def test_a_conversation_from_its_begin_to_its_end(client: openai.OpenAI) -> None:
    begun = client.conversations.create(items=[HI], metadata={"a": "b"})

    assert client.conversations.retrieve(begun.id) == begun
    assert (begun.object, begun.metadata) == ("conversation", {"a": "b"})
    assert client.conversations.update(begun.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.delete(begun.id).deleted is True
    with pytest.raises(openai.NotFoundError, match="no conversation"):
        client.conversations.retrieve(begun.id)


def test_items_are_added_listed_shown_and_deleted(client: openai.OpenAI) -> None:
    id = client.conversations.create().id
    called: Any = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result: Any = {"type": "function_call_output", "call_id": "c1", "output": "a wall"}

    added = client.conversations.items.create(id, items=[HI, called])
    client.conversations.items.create(id, items=[result])

    assert [item.type for item in added.data] == ["message", "function_call"]
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)
    newest, *_ = client.conversations.items.list(id, limit=1)
    assert newest.type == "function_call_output"
    assert client.conversations.items.retrieve(added.first_id, conversation_id=id) == added.data[0]
    assert client.conversations.items.delete(added.first_id, conversation_id=id).id == id
    with pytest.raises(openai.NotFoundError, match="no item"):
        client.conversations.items.retrieve(added.first_id, conversation_id=id)


def test_images_of_items_are_shown_where_that_is_asked_for(client: openai.OpenAI) -> None:
    image: Any = {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "low"}]}
    id = client.conversations.create(items=[image]).id

    shown: list[Any] = [
        next(iter(client.conversations.items.list(id, include=include)))
        for include in (["message.input_image.image_url"], ["reasoning.encrypted_content"])  # type: ignore[list-item]
    ]

    assert [item.content[0].image_url for item in shown] == [PIXEL, None]
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.conversations.items.list(id, include=["message.output_text.logprobs"])


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"type": "function_call_output", "call_id": "c9", "output": "x"}], "items[0].call_id"),
        ([HI, {"role": "user"}], "items[1].content"),
        ([HI, {"type": "computer_call"}], "items[1].type"),
        ([{"role": "assistant", "content": [{"type": "input_image", "image_url": PIXEL}]}], "items[0].content[0]"),
        ([{"type": "item_reference", "id": "msg_1"}], "items[0].id"),
        ([HI] * 21, "items"),
    ],
)
def test_items_that_nothing_could_go_on_from_are_refused(client: openai.OpenAI, items: Any, param: str) -> None:
    id = client.conversations.create(items=[HI]).id

    with pytest.raises(openai.APIStatusError) as refused:
        client.conversations.items.create(id, items=items)

    assert refused.value.status_code in (400, 404)
    assert refused.value.param == param
    assert said(client, id) == ["hi"]


def test_responses_go_on_from_a_conversation_and_are_added_to_it(client: openai.OpenAI) -> None:
    id = client.conversations.create(items=[HI]).id

    first = client.responses.create(**ASK, input="one", conversation=id)
    with client.responses.create(**ASK, input="two", conversation={"id": id}, stream=True) as stream:
        *_, last = stream

    assert first.conversation is not None
    assert first.conversation.id == id
    assert last.type == "response.incomplete"
    second = last.response
    assert said(client, id) == ["hi", "one", first.output_text, "two", second.output_text]
    prompt = f"user: hi\nuser: one\nassistant: {first.output_text}\nuser: two\nassistant:"
    assert second.usage is not None
    assert second.usage.input_tokens == len(prompt.encode())
    listed: Any = client.responses.input_items.list(second.id, order="asc")
    assert [item.content[0].text for item in listed] == ["hi", "one", first.output_text, "two"]


def test_responses_at_the_same_time_neither_lose_nor_mix_items(client: openai.OpenAI) -> None:
    id = client.conversations.create().id

    with ThreadPoolExecutor(6) as threads:
        answers = dict(
            threads.map(lambda i: (f"q{i}", client.responses.create(**ASK, input=f"q{i}", conversation=id)), range(6))
        )

    texts = said(client, id)
    turns = dict(zip(texts[::2], texts[1::2], strict=True))
    assert turns == {question: response.output_text for question, response in answers.items()}


def test_a_conversation_is_its_keys_own(start: Servers) -> None:
    server = start.start(api_keys="mine,yours")
    with server.client("mine") as mine, server.client("yours") as yours:
        id = mine.conversations.create(items=[HI]).id

        for call in (
            lambda: yours.conversations.retrieve(id),
            lambda: yours.conversations.items.list(id),
            lambda: yours.conversations.delete(id),
            lambda: yours.responses.create(**ASK, input="and?", conversation=id),
        ):
            with pytest.raises(openai.NotFoundError, match="no conversation"):
                call()
        assert said(mine, id) == ["hi"]


def test_logprobs_of_a_response(client: openai.OpenAI) -> None:
    asked: Any = {**ASK, "temperature": 0, "input": "hi"}
    whole = client.responses.create(**asked, **LOGPROBS)
    with client.responses.create(**asked, **LOGPROBS, stream=True) as stream:
        events = list(stream)

    part: Any = whole.output[0].content[0]  # type: ignore[union-attr]
    assert "".join(token.token for token in part.logprobs) == part.text == whole.output_text
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in part.logprobs)
    tokens = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [(token.token, token.logprob) for token in tokens] == [(one.token, one.logprob) for one in part.logprobs]
    assert [token.model_dump() for token in done.logprobs] == [token.model_dump() for token in tokens]
    assert client.responses.create(**asked).output[0].content[0].logprobs == []  # type: ignore[union-attr]


def test_logprobs_without_their_include_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"top_logprobs is only allowed with include"):
        client.responses.create(**ASK, input="hi", top_logprobs=2)
