"""openai, the client that everybody else's are made like."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.conftest import KEY, MODEL, says_something
from tests.clients.people import PERSON, QUESTION, WEATHER, Person, Weather
from tests.serve.server import Server, Servers

pytestmark = pytest.mark.model

ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}
WHO: Any = {"model": MODEL, "messages": [{"role": "user", "content": PERSON}], "max_tokens": 60}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER}}
FLAT: Any = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": WEATHER, "strict": True}
RAIN: Any = {**ASK, "messages": [{"role": "user", "content": "Weather in Oslo, in C?"}], "max_tokens": 60}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client(KEY) as client:
        yield client


# Chats


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK)

    assert answer.model == MODEL
    assert says_something(answer.choices[0].message.content)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_conversation_with_a_system_prompt(client: openai.OpenAI) -> None:
    turns: Any = [{"role": "system", "content": "You are a pirate."}, *ASK["messages"]]
    first = client.chat.completions.create(**{**ASK, "messages": turns}).choices[0].message

    turns += [first.to_dict(), {"role": "user", "content": "And what is 3+3?"}]
    second = client.chat.completions.create(**{**ASK, "messages": turns}).choices[0].message

    assert says_something(first.content)
    assert says_something(second.content)
    assert first.content != second.content


def test_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(**ASK, stream=True) as stream:
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]

    assert "".join(pieces) == client.chat.completions.create(**ASK).choices[0].message.content
    assert len(pieces) > 5


def test_the_stream_helper_with_usage(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASK, stream_options={"include_usage": True}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()

    assert "".join(deltas) == final.choices[0].message.content
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_stop_seed_and_several_answers(client: openai.OpenAI) -> None:
    def answers() -> list[str | None]:
        fields = {**ASK, "temperature": 1.2, "seed": 7, "n": 3, "stop": [".", "\n"]}
        return [choice.message.content for choice in client.chat.completions.create(**fields).choices]

    first = answers()

    assert len(first) == 3
    assert len(set(first)) > 1
    assert not any("." in (text or "") for text in first)
    assert answers() == first


def test_four_at_once_through_the_async_client(server: Server) -> None:
    async def stream(client: openai.AsyncOpenAI, city: str) -> str:
        turns: Any = [{"role": "user", "content": f"Tell me about {city}."}]
        text = ""
        async for chunk in await client.chat.completions.create(**{**ASK, "messages": turns}, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0, timeout=60) as client:
            return await asyncio.gather(*(stream(client, city) for city in ("Oslo", "Rome", "Lima", "Cairo")))

    texts = asyncio.run(ask_all())

    assert all(map(says_something, texts))
    assert len(set(texts)) == 4


# Structured answers and tools


def test_an_answer_parsed_as_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**WHO, response_format=Person)

    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_streamed_answer_parsed_as_a_model(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**WHO, response_format=Person) as stream:
        final = stream.get_final_completion()

    assert isinstance(final.choices[0].message.parsed, Person)


def test_any_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**{**WHO, "max_tokens": 200}, response_format={"type": "json_object"})

    assert (answer.choices[0].message.content or "").startswith("{")


def test_a_tool_is_called_and_its_result_is_answered(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(**RAIN, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    (call,) = asked.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert asked.choices[0].finish_reason == "tool_calls"
    assert Weather.model_validate_json(call.function.arguments)

    result = {"role": "tool", "tool_call_id": call.id, "content": "rain, 4 degrees"}
    turns: Any = [*RAIN["messages"], asked.choices[0].message.to_dict(), result]
    told = client.chat.completions.create(**{**RAIN, "messages": turns}, tools=[TOOL], tool_choice="none")

    assert says_something(told.choices[0].message.content)


def test_a_call_streamed(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(**RAIN, tools=[TOOL], tool_choice=choice) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []

    assert len(pieces) > 2
    assert Weather.model_validate_json(call.function.arguments)


# Responses


def test_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=30)

    assert says_something(response.output_text)
    assert response.usage is not None
    assert response.usage.output_tokens > 0


def test_a_response_streamed(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()

    assert "".join(deltas) == final.output_text
    assert final.status == "completed"


def test_responses_that_go_on_from_each_other(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ann.", max_output_tokens=20)
    second = client.responses.create(
        model=MODEL, input="What is my name?", previous_response_id=first.id, max_output_tokens=20
    )

    assert client.responses.retrieve(first.id).output_text == first.output_text
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_compacted_conversation_goes_on(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=30)
    compacted = client.responses.compact(model=MODEL, previous_response_id=first.id)
    turns: Any = [*(item.to_dict(warnings=False) for item in compacted.output), {"role": "user", "content": "And 3+3?"}]

    answer = client.responses.create(model=MODEL, input=turns, max_output_tokens=30)

    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert compacted.usage.output_tokens > 0
    assert says_something(answer.output_text)


def test_a_response_parsed_as_a_model(client: openai.OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input=PERSON, text_format=Person, max_output_tokens=60)

    assert isinstance(response.output_parsed, Person)


def test_a_tool_called_by_a_response(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "max_output_tokens": 60, "tools": [FLAT], "parallel_tool_calls": False}
    first = client.responses.create(**asked, input="Weather in Oslo, in C?", tool_choice="required")
    (call,) = first.output
    assert call.type == "function_call"
    assert Weather.model_validate_json(call.arguments)

    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain, 4 degrees"}
    second = client.responses.create(**asked, input=[result], previous_response_id=first.id, tool_choice="none")

    assert says_something(second.output_text)


def test_a_custom_tool_called_by_a_response(client: openai.OpenAI) -> None:
    tool: Any = {"type": "custom", "name": "code", "description": "Runs Python."}
    asked: Any = {"model": MODEL, "max_output_tokens": 60, "tools": [tool], "parallel_tool_calls": False}
    with client.responses.stream(**asked, input="Say 1 in Python.", tool_choice="required") as stream:
        pieces = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
        first = stream.get_final_response()
    (call,) = first.output
    assert call.type == "custom_tool_call"
    assert call.input == "".join(pieces)

    said: Any = [{"role": "user", "content": "Say 1."}, call.to_dict(),
                 {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "1"}]  # fmt: skip
    items = client.responses.create(**asked, input=said, tool_choice="none")
    kept = client.responses.create(**asked, input=said[2:], previous_response_id=first.id, tool_choice="none")

    assert says_something(items.output_text)
    assert says_something(kept.output_text)
    assert [item.type for item in client.responses.input_items.list(items.id, order="asc")][1:] == [
        "custom_tool_call", "custom_tool_call_output"
    ]  # fmt: skip


def test_what_agents_offer_and_include_unasked_does_not_stop_them(client: openai.OpenAI) -> None:
    space: Any = {"type": "namespace", "name": "sky", "description": "Looks up.", "tools": [FLAT]}
    asked: Any = {"model": MODEL, "max_output_tokens": 60, "store": False, "include": ["reasoning.encrypted_content"],
                  "reasoning": {"summary": "auto"}, "tools": [{"type": "web_search"}, space]}  # fmt: skip
    with client.responses.stream(**asked, input="Weather in Oslo, in C?", tool_choice="required") as stream:
        call = next(event.item for event in stream if event.type == "response.output_item.done")
    assert call.type == "function_call"
    assert (call.namespace, call.name) == ("sky", "weather")

    items: Any = [{"role": "user", "content": "?"}, call.to_dict(),
                  {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]  # fmt: skip
    assert says_something(client.responses.create(**{**asked, "tools": [space]}, input=items).output_text)


def test_an_item_that_is_stored_is_referred_to(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ann.", max_output_tokens=12)
    said: Any = [{"role": "user", "content": "My name is Ann."}, {"type": "item_reference", "id": first.output[0].id},
                 {"role": "user", "content": "What is my name?"}]  # fmt: skip
    whole: Any = [said[0], first.output[0].to_dict(), said[2]]

    counted = [client.responses.input_tokens.count(model=MODEL, input=items).input_tokens for items in (said, whole)]

    assert counted[0] == counted[1]


def test_the_tokens_of_a_response_are_counted(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION)
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=1)

    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


# Embeddings and models


def test_embeddings(client: openai.OpenAI) -> None:
    texts = ["a cat", "a kitten", "tax law"]
    answer = client.embeddings.create(model=MODEL, input=texts)
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")

    assert [one.index for one in answer.data] == [0, 1, 2]
    assert len(answer.data[0].embedding) > 100
    for ours, theirs in zip(answer.data, plain.data, strict=True):
        assert ours.embedding == pytest.approx(theirs.embedding, abs=1e-4)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


# What goes wrong


def test_errors_are_the_clients_own(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**ASK, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(**{**ASK, "messages": [{"role": "user", "content": "word " * 3000}]})
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    with server.client("wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(**ASK)


def test_a_busy_server_is_asked_again(own_servers: Servers) -> None:
    server = own_servers.start(slots=1, queue=0)
    ask: Any = {"model": "any", "messages": ASK["messages"]}
    with server.client(max_retries=0) as first, server.client(max_retries=5) as second:
        stream = first.chat.completions.create(**ask, stream=True)
        with pytest.raises(openai.RateLimitError):
            first.chat.completions.create(**ask, max_tokens=1)
        leaving = threading.Timer(0.3, stream.close)
        leaving.start()

        assert second.chat.completions.create(**ask, max_tokens=1).choices
        leaving.join()


def test_a_client_that_waits_no_longer_frees_its_slot(own_servers: Servers) -> None:
    server = own_servers.start(slots=1)
    with server.client(timeout=1.5) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="any", messages=ASK["messages"], max_tokens=4000)

    server.wait_idle()
    assert server.cancelled() == 1
