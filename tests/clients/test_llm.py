"""llm, the command line, with our model in its list of OpenAI-compatible ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, MODEL, Run, of_clients, says_something
from tests.clients.people import PERSON, QUESTION, Person
from tests.serve.server import Server

pytestmark = pytest.mark.model

Llm = Callable[..., str]


@pytest.fixture
def llm(server: Server, run: Run, tmp_path: Path) -> Llm:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"""
- model_id: ours
  model_name: {MODEL}
  api_base: {server.url}
  api_key_name: ours
  supports_schema: true
  supports_tools: true
"""
    )
    (tmp_path / "keys.json").write_text(json.dumps({"ours": KEY}))

    def llm(*arguments: str) -> str:
        return run(of_clients("llm"), *arguments, LLM_USER_PATH=str(tmp_path))

    return llm


def test_a_question(llm: Llm) -> None:
    streamed = llm("-m", "ours", "-o", "max_tokens", "16", QUESTION)
    whole = llm("-m", "ours", "-o", "max_tokens", "16", "--no-stream", QUESTION)

    assert says_something(streamed)
    assert streamed == whole


def test_a_conversation_with_a_system_prompt(llm: Llm) -> None:
    first = llm("-m", "ours", "-o", "max_tokens", "16", "-s", "You are a pirate.", QUESTION)
    second = llm("-c", "-o", "max_tokens", "16", "And what is 3+3?")

    assert says_something(first)
    assert says_something(second)
    logged = json.loads(llm("logs", "--json", "-n", "2"))
    assert [one["response"].strip() for one in logged] == [first.strip(), second.strip()]
    assert logged[1]["input_tokens"] > logged[0]["input_tokens"] > 0


def test_an_answer_by_a_schema(llm: Llm) -> None:
    schema = json.dumps(Person.model_json_schema())

    assert Person.model_validate_json(llm("-m", "ours", "-o", "max_tokens", "60", "--schema", schema, PERSON))


def test_a_tool_may_be_called(llm: Llm) -> None:
    printed = llm(
        "-m", "ours", "-o", "max_tokens", "60", "-T", "llm_version", "--chain-limit", "2", "Which llm is this?"
    )

    assert says_something(printed)
