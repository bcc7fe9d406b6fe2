"""Tools and JSON with SmolLM2: what is forced is always valid, streamed or not, alone and sixteen at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from tests.serve.server import Server
from tests.serve.wire import Connection

pytestmark = pytest.mark.model

UNITS = ["celsius", "kelvin"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1, "maxLength": 20},
                "unit": {"enum": UNITS},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
FORCED: dict[str, Any] = {"tools": [WEATHER, CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def ask(text: str = "What is the weather in Paris?", **fields: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 200, **fields}


@pytest.fixture
def client(real: Server) -> Iterator[openai.OpenAI]:
    with real.client(timeout=120) as client:
        yield client


def check(message: ChatCompletionMessage) -> str:
    """The message has one right call; its function's name."""
    assert message.content is None
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments.keys() - {"days"} == {"city", "unit"}
        assert 1 <= len(arguments["city"]) <= 20
        assert arguments["unit"] in UNITS
        assert 1 <= arguments.get("days", 1) <= 9
    else:
        assert (call.function.name, arguments) == ("get_time", {})
    return call.function.name


def test_a_forced_call_is_right(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ask(**FORCED, temperature=0)).choices

    assert check(choice.message) == "get_weather"
    assert "Paris" in (choice.message.tool_calls or [])[0].function.arguments  # type: ignore[union-attr]
    assert choice.finish_reason == "tool_calls"


def test_a_named_tool_is_called(client: openai.OpenAI) -> None:
    named = {**FORCED, "tool_choice": {"type": "function", "function": {"name": "get_time"}}}

    (choice,) = client.chat.completions.create(**ask(**named)).choices

    assert check(choice.message) == "get_time"


def test_one_of_the_allowed_tools_is_called(client: openai.OpenAI) -> None:
    some: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    named: Any = {"mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    tools: Any = [{"type": "function", **tool["function"]} for tool in FORCED["tools"]]
    asked = ask(**FORCED, temperature=0)
    asked["tool_choice"] = {"type": "allowed_tools", "allowed_tools": some}

    (choice,) = client.chat.completions.create(**asked).choices
    response = client.responses.create(
        model=asked["model"],
        input=asked["messages"],
        tools=tools,
        tool_choice={"type": "allowed_tools", **named},
        temperature=0,
    )

    assert check(choice.message) == "get_time"
    assert [item.name for item in response.output if item.type == "function_call"][:1] == ["get_time"]
    assert response.tool_choice.type == "allowed_tools"  # type: ignore[union-attr]


def test_a_streamed_call_is_right_too(client: openai.OpenAI) -> None:
    asked = ask(**FORCED, temperature=0)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_completion().choices

    (whole,) = client.chat.completions.create(**asked).choices
    assert check(streamed.message) == "get_weather"
    assert kinds.count("tool_calls.function.arguments.delta") > 4, "arguments come as they are made"
    assert streamed.finish_reason == "tool_calls"
    assert (streamed.message.tool_calls or [])[0].function.arguments == (  # type: ignore[union-attr]
        (whole.message.tool_calls or [])[0].function.arguments  # type: ignore[union-attr]
    )


def test_sixteen_forced_calls_at_once_are_right(client: openai.OpenAI) -> None:
    def call(number: int) -> str:
        asked = ask(f"Weather in city number {number}, or the time?", **FORCED, temperature=1.5, seed=number)
        if number % 2:
            return check(client.chat.completions.create(**asked).choices[0].message)
        with client.chat.completions.stream(**asked) as stream:
            return check(stream.get_final_completion().choices[0].message)

    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(call, range(16)))) == 16


@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 12, 16])
def test_a_call_that_the_limit_cuts_off_shows_no_markup_and_can_be_sent_back(
    client: openai.OpenAI, tokens: int
) -> None:
    question = ask(**FORCED, temperature=0, max_tokens=tokens)
    (cut,) = client.chat.completions.create(**question).choices
    calls = cut.message.tool_calls or []
    results = [{"role": "tool", "tool_call_id": call.id, "content": "failed: this is no JSON"} for call in calls]

    history = [*question["messages"], cut.message.model_dump(exclude_none=True), *results]
    history.append({"role": "user", "content": "Call it again."})
    again = client.chat.completions.create(**ask(**FORCED, temperature=0) | {"messages": history})

    assert cut.finish_reason == "length"
    assert not cut.message.content
    assert check(again.choices[0].message)


def test_several_calls_are_right(client: openai.OpenAI) -> None:
    several = {**FORCED, "parallel_tool_calls": True, "tools": [CLOCK]}

    answer = client.chat.completions.create(**ask(**several, n=2, temperature=1.5, seed=1, max_tokens=600))

    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert {call.function.arguments for call in choice.message.tool_calls or []} == {"{}"}  # type: ignore[union-attr]


def test_a_result_reaches_the_prompt(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ask(**FORCED, temperature=0)).choices
    (call,) = choice.message.tool_calls or []

    def prompt_tokens(result: str) -> int:
        asked = ask(tools=FORCED["tools"], max_tokens=1)
        told = {"role": "tool", "tool_call_id": call.id, "content": result}
        asked["messages"] += [choice.message.to_dict(), told]
        usage = client.chat.completions.create(**asked).usage
        assert usage is not None
        return usage.prompt_tokens

    assert prompt_tokens("snow " * 50) >= prompt_tokens("snow ") + 49


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_an_answer_of_a_schema_is_valid(client: openai.OpenAI, temperature: float) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}

    answer = client.chat.completions.create(
        **ask("Make up a person.", temperature=temperature, seed=1), response_format=form, n=4
    )

    for choice in answer.choices:
        person = json.loads(choice.message.content or "")
        assert person.keys() == {"name", "age"}
        assert 0 <= person["age"] <= 150
        assert choice.finish_reason == "stop"


def test_an_answer_of_json_is_an_object_unless_it_is_cut(client: openai.OpenAI) -> None:
    asked = ask("Make up a person, as JSON.", temperature=0.8, seed=2, n=2)

    for choice in client.chat.completions.create(**asked, response_format={"type": "json_object"}).choices:
        text = choice.message.content or ""
        assert text.startswith("{")
        assert choice.finish_reason == "length" or isinstance(json.loads(text), dict)


def with_history(**fields: Any) -> dict[str, Any]:
    """Two questions that were answered with the tool, and a third."""
    messages: list[dict[str, Any]] = []
    for number, city in enumerate(("Rome", "Oslo")):
        function = {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": "celsius"})}
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ]
    messages.append({"role": "user", "content": "What is the weather in Paris?"})
    return {**ask(tools=[WEATHER], temperature=0), "messages": messages, **fields}


# The model needs a push: left to itself it makes up a response.
PUSH: dict[str, Any] = {"logit_bias": [["response", False]]}


def test_a_model_that_likes_to_call_does_so(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**with_history(), extra_body=PUSH) as stream:
        (choice,) = stream.get_final_completion().choices

    assert check(choice.message) == "get_weather"
    assert choice.finish_reason == "tool_calls"


def test_a_model_that_does_not_may_talk(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**with_history(logit_bias={"44": -100}, max_tokens=8)).choices

    assert choice.message.content
    assert not choice.message.tool_calls


def test_who_may_not_call_does_not(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**with_history(tool_choice="none"), extra_body=PUSH).choices

    assert choice.message.content
    assert not choice.message.tool_calls


def test_tokens_are_listed_with_how_likely_they_were(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**ask("Say: déjà vu", temperature=0, max_tokens=12), "logprobs": True, "top_logprobs": 2}

    (whole,) = client.chat.completions.create(**asked).choices
    with client.chat.completions.create(**asked, stream=True) as stream:
        pieces = [chunk.choices[0] for chunk in stream]

    assert whole.logprobs is not None
    tokens = whole.logprobs.content or []
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == whole.message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    assert [token for piece in pieces if piece.logprobs for token in piece.logprobs.content or []] == tokens


def test_tools_are_tokens_of_the_prompt(client: openai.OpenAI) -> None:
    with_tools, without = (
        client.chat.completions.create(**ask(max_tokens=1, **tools)) for tools in ({"tools": [WEATHER]}, {})
    )

    assert with_tools.usage is not None
    assert without.usage is not None
    assert with_tools.usage.prompt_tokens > without.usage.prompt_tokens + 50


def test_control_markers_in_tools_are_text(real: Server) -> None:
    tools = [{"type": "function", "function": {"name": "a", "description": word}} for word in ("<|im_end|>", "x")]

    with real.connect() as connection:
        counts = [_prompt_tokens(connection, ask(max_tokens=1, tools=[tool])) for tool in tools]

    assert counts[0] > counts[1] + 3, "the marker is one token where it is obeyed"


def _prompt_tokens(connection: Connection, body: dict[str, Any]) -> int:
    return int(connection.post(body).json["usage"]["prompt_tokens"])
