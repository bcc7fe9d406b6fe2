"""anthropic, the client of the Messages API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.clients.conftest import KEY, MODEL, says_something
from tests.clients.people import PERSON, QUESTION, WEATHER, Person, Weather
from tests.serve.server import Server, Servers

pytestmark = pytest.mark.model

ASK: Any = {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": QUESTION}]}
TOOL: Any = {"name": "weather", "description": "Tells it.", "input_schema": WEATHER}
RAIN: Any = {**ASK, "messages": [{"role": "user", "content": "Weather in Oslo, in C?"}], "max_tokens": 60}


def options(server: Server, key: str = KEY) -> dict[str, Any]:
    return {"base_url": server.url.removesuffix("/v1"), "api_key": key, "max_retries": 0, "timeout": 60}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(**options(server)) as client:
        yield client


def words(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK, system="You are a pirate.", extra_body={"temperature": 0, "top_k": 5})

    assert says_something(words(message))
    assert message.model == MODEL
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens > 0
    assert message._request_id


def test_a_conversation_goes_on(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**ASK)
    turns: Any = [*ASK["messages"], {"role": "assistant", "content": first.content},
                  {"role": "user", "content": [{"type": "text", "text": "And what is 3+3?"}]}]  # fmt: skip

    second = client.messages.create(**{**ASK, "messages": turns})

    assert says_something(words(second))
    assert words(second) != words(first)


def test_an_answer_is_put_into_its_mouth(client: anthropic.Anthropic) -> None:
    begun: Any = [*ASK["messages"], {"role": "assistant", "content": "The answer is"}]

    assert words(client.messages.create(**{**ASK, "messages": begun})).startswith(" ")


def test_the_stream_helper(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ASK) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()

    assert "".join(pieces) == words(final) == words(client.messages.create(**ASK))
    assert len(pieces) > 5
    assert final.usage.output_tokens > 0


def test_a_stream_event_by_event(client: anthropic.Anthropic) -> None:
    with client.messages.create(**ASK, stream=True) as stream:
        kinds = [event.type for event in stream]

    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_four_at_once_through_the_async_client(server: Server) -> None:
    async def ask(client: anthropic.AsyncAnthropic, city: str) -> str:
        turns: Any = [{"role": "user", "content": f"Tell me about {city}."}]
        async with client.messages.stream(**{**ASK, "messages": turns}) as stream:
            return await stream.get_final_text()

    async def ask_all() -> list[str]:
        async with anthropic.AsyncAnthropic(**options(server)) as client:
            return await asyncio.gather(*(ask(client, city) for city in ("Oslo", "Rome", "Lima", "Cairo")))

    texts = asyncio.run(ask_all())

    assert all(map(says_something, texts))
    assert len(set(texts)) == 4


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    full = words(client.messages.create(**ASK))

    message = client.messages.create(**ASK, stop_sequences=["\n\n\n", full[5:8]])

    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", full[5:8])
    assert words(message) == full[:5]


def test_a_tool_is_used_and_its_result_is_answered(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    asked = client.messages.create(**RAIN, tools=[TOOL], tool_choice=choice)
    (use,) = asked.content
    assert use.type == "tool_use"
    assert asked.stop_reason == "tool_use"
    assert Weather.model_validate(use.input)

    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain, 4 degrees"}
    turns: Any = [*RAIN["messages"], {"role": "assistant", "content": asked.content},
                  {"role": "user", "content": [result]}]  # fmt: skip
    told = client.messages.create(**{**RAIN, "messages": turns}, tools=[TOOL], tool_choice={"type": "none"})

    assert says_something(words(told))


def test_a_tool_use_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**RAIN, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        (use,) = stream.get_final_message().content

    assert use.type == "tool_use"
    assert len(pieces) > 2
    assert Weather.model_validate(use.input)


def test_an_answer_parsed_as_a_model(client: anthropic.Anthropic) -> None:
    fields: Any = {**ASK, "messages": [{"role": "user", "content": PERSON}], "max_tokens": 60}

    assert isinstance(client.messages.parse(**fields, output_format=Person).parsed_output, Person)


def test_what_agents_send_beside_their_words_does_not_stop_them(client: anthropic.Anthropic) -> None:
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    turns: Any = [*ASK["messages"], {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"},
                                                                     {"type": "text", "text": "Four."}]},
                  {"role": "system", "content": "Be brief."}, {"role": "user", "content": "And 3+3?"}]  # fmt: skip

    message = client.messages.create(
        **{**ASK, "messages": turns}, extra_body={"context_management": keeps, "thinking": {"type": "adaptive"}}
    )

    assert says_something(words(message))


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": MODEL, "messages": ASK["messages"], "system": "Be brief.", "tools": [TOOL]}

    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(**fields, max_tokens=1).usage

    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_batch_of_messages_is_answered(own_servers: Servers, tmp_path: Path) -> None:
    server = own_servers.start(model="", model_alias=MODEL, ctx=1024, slots=4, threads=1, temp=0, files_path=tmp_path)
    with anthropic.Anthropic(**options(server)) as client:
        batch = client.messages.batches.create(
            requests=[{"custom_id": "sum", "params": ASK}, {"custom_id": "bad", "params": {**ASK, "max_tokens": 0}}]
        )
        while batch.processing_status != "ended":
            time.sleep(0.1)
            batch = client.messages.batches.retrieve(batch.id)
        found = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
        alone = client.messages.create(**ASK)

        assert found["sum"].type == "succeeded"
        assert words(found["sum"].message) == words(alone)
        assert found["bad"].type == "errored"
        assert "max_tokens" in found["bad"].error.error.message
        assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"


def test_models_have_names_and_dates(client: anthropic.Anthropic) -> None:
    (listed,) = client.models.list()

    assert (listed.type, listed.display_name, listed.lifecycle) == ("model", listed.id, "active")
    assert abs(time.time() - listed.created_at.timestamp()) < 3600
    assert client.models.retrieve(MODEL).display_name == listed.id
    assert listed.to_dict(warnings="error")["id"] == MODEL


def test_errors_are_the_clients_own(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as refused:
        client.messages.create(**ASK, extra_body={"temperature": -1})
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "word " * 3000}]})
    with anthropic.Anthropic(**options(server, "wrong")) as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**ASK)


def test_a_conversation_whose_client_would_keep_a_thread_goes_on_without_one(client: anthropic.Anthropic) -> None:
    thread = client.beta.messages.thread(
        model=MODEL, max_tokens=8, messages=ASK["messages"], unsupported_request_behavior="continue_unthreaded"
    )

    first = thread.send()
    second = thread.send({"role": "user", "content": "And what is 3+3?"})

    assert first.usage.output_tokens > 0
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens - 8
    assert thread.previous_message_id is None
