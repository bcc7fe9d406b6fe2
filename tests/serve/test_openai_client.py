"""The official client, which knows nothing about us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.server import Server, Servers

ASK: dict[str, Any] = {"model": "synthetic", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, max_tokens=5)

    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "synthetic"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_a_streamed_chat_completion(client: openai.OpenAI) -> None:
    with client.chat.completions.create(**ASK, max_tokens=5, stream=True) as stream:
        chunks = list(stream)

    whole = client.chat.completions.create(**ASK, max_tokens=5).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_usage(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    with client.chat.completions.create(**ASK, max_tokens=5, stream=True, stream_options=options) as stream:
        *earlier, last = list(stream)

    assert all(chunk.usage is None for chunk in earlier)
    assert last.choices == []
    assert last.usage == client.chat.completions.create(**ASK, max_tokens=5).usage


def test_the_clients_own_stream_helper(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**ASK, max_tokens=40).choices[0].message.content or ""

    with client.chat.completions.stream(**ASK, max_tokens=40, stop=text[-6:]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()

    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == text[: text.index(text[-6:])]


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, max_tokens=4, n=2)

    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens == len("user: hi\nassistant:")


def test_a_text_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="synthetic", prompt="Once", max_tokens=5, temperature=0)
    with client.completions.create(
        model="synthetic", prompt="Once", max_tokens=5, temperature=0, stream=True
    ) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream)

    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == streamed
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 5)


def test_several_prompts_and_choices_are_numbered_prompt_first(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="synthetic", prompt=["One", "Two", [84, 104]], n=2, max_tokens=2)

    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 12)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data

    assert (model.id, model.object, model.owned_by) == ("synthetic", "model", "corosrv")
    assert client.models.retrieve("synthetic") == model


def test_the_headers_can_be_had(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        **ASK, max_tokens=1, extra_headers={"X-Request-Id": "mine-2"}
    )

    assert raw.headers["x-request-id"] == "mine-2"
    assert raw.parse().choices
    assert client.chat.completions.create(**ASK, max_tokens=1)._request_id


def test_thirty_at_once_through_the_async_client(server: Server) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> tuple[str, str]:
        fields = ASK | {"messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 10}
        whole = client.chat.completions.create(**fields)
        text = ""
        async for chunk in await client.chat.completions.create(**fields, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text, (await whole).choices[0].message.content or ""

    async def ask_all() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=30) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(30)))

    pairs = asyncio.run(ask_all())

    assert all(streamed and streamed == whole for streamed, whole in pairs)


@pytest.mark.parametrize("setting", [0, 1])
def test_a_stream_left_early_is_cancelled(server: Server, client: openai.OpenAI, setting: int) -> None:
    server.wait_idle()
    before = server.cancelled()

    with client.chat.completions.create(**ASK, stream=True) as stream:
        for _ in range(1 + setting):
            next(iter(stream))

    server.wait_idle(within=10)
    assert server.cancelled() == before + 1


# Errors become the client's own


def test_a_bad_request_is_a_bad_request_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK, temperature=-1)

    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    assert "temperature" in caught.value.message


def test_a_prompt_too_long_has_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="synthetic", prompt="x" * 5000)

    assert caught.value.code == "context_length_exceeded"
    assert isinstance(caught.value.body, dict)
    assert (caught.value.body["n_prompt_tokens"], caught.value.body["n_ctx"]) == (5000, 4096)


def test_an_unknown_path_and_model_are_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.list()
    with pytest.raises(openai.InternalServerError, match="COROSRV_FILES_PATH"):
        client.files.list()
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("another")

    assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_an_authentication_error_and_a_strange_model_is_not_found(start: Servers) -> None:
    server = start.start(api_keys="right", strict_model=1)
    with server.client("right") as right, server.client("wrong") as wrong:
        with pytest.raises(openai.AuthenticationError) as unknown:
            wrong.models.list()
        with pytest.raises(openai.NotFoundError) as missing:
            right.chat.completions.create(**ASK | {"model": "another"})

        assert unknown.value.code == "invalid_api_key"
        assert missing.value.code == "model_not_found"
        assert right.chat.completions.create(**ASK, max_tokens=1).choices
