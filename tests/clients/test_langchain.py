"""langchain-openai, pointed at another server by its base_url."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.clients.conftest import KEY, MODEL, says_something
from tests.clients.people import PERSON, QUESTION, Person
from tests.serve.server import Server

pytestmark = pytest.mark.model


class weather(BaseModel):
    """Tells the weather of a city."""

    city: str


def model(server: Server, **fields: Any) -> ChatOpenAI:
    made = {"base_url": server.url, "api_key": KEY, "model": MODEL, "max_tokens": 24, "max_retries": 0, "timeout": 60}
    return ChatOpenAI(**{**made, **fields})


def test_invoke(server: Server) -> None:
    answer = model(server).invoke([SystemMessage("You are a pirate."), HumanMessage(QUESTION)])

    assert says_something(answer.content)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_stream(server: Server) -> None:
    pieces = [chunk.content for chunk in model(server).stream(QUESTION)]

    assert "".join(map(str, pieces)) == model(server).invoke(QUESTION).content
    assert len(pieces) > 5


def test_a_chain_in_a_batch(server: Server) -> None:
    chain = ChatPromptTemplate.from_messages([("human", "Tell me about {city}.")]) | model(server)

    answers = chain.batch([{"city": city} for city in ("Oslo", "Rome", "Lima")])

    assert all(says_something(answer.content) for answer in answers)
    assert says_something(asyncio.run(chain.ainvoke({"city": "Cairo"})).content)


def test_over_the_responses_api(server: Server) -> None:
    chat = model(server, use_responses_api=True)

    answer = chat.invoke(QUESTION)
    pieces = list(chat.stream(QUESTION))

    assert says_something(answer.text)
    assert "".join(piece.text for piece in pieces) == answer.text


def test_bind_tools(server: Server) -> None:
    chat = model(server, max_tokens=60)
    asked: Any = HumanMessage("Weather in Oslo?")

    called = chat.bind_tools([weather], tool_choice="weather").invoke([asked])
    (call,) = called.tool_calls
    told = chat.invoke([asked, called, ToolMessage("rain, 4 degrees", tool_call_id=call["id"])])

    assert call["name"] == "weather"
    assert weather.model_validate(call["args"])
    assert isinstance(told, AIMessage)
    assert says_something(told.content)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_with_structured_output(server: Server, method: Any) -> None:
    reader = model(server, max_tokens=60).with_structured_output(Person, method=method)

    assert isinstance(reader.invoke(PERSON), Person)


def test_embeddings(server: Server) -> None:
    # Without the check: it would cut texts by another model's tokens, whose table it fetches.
    embeddings = OpenAIEmbeddings(base_url=server.url, api_key=KEY, model=MODEL, check_embedding_ctx_length=False)

    documents = embeddings.embed_documents(["a cat", "tax law"])

    assert len(documents) == 2
    assert embeddings.embed_query("a cat") == pytest.approx(documents[0], abs=1e-3)
