"""litellm, which speaks to us as to OpenAI and as to Anthropic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY, MODEL, of_clients, run_in, says_something
from tests.clients.people import PERSON, QUESTION, Person
from tests.serve.server import Server

pytestmark = pytest.mark.model

PROGRAM = str(Path(__file__).with_name("with_litellm.py"))
TALK = ("chat", "stream", "many", "claude", "claude_stream", "response")
SHAPE = ("tool", "claude_tool", "schema", "embedding")
WRONG = ("refused", "unknown_key")


@pytest.fixture(scope="module")
def came(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each, by its name. One run for all: it takes seconds to import."""
    names = (*TALK, *SHAPE, *WRONG)
    printed = run_in(tmp_path_factory.mktemp("litellm"))(
        of_clients("python"), PROGRAM, *names,
        BASE=server.url, KEY=KEY, MODEL=MODEL, QUESTION=QUESTION, PERSON=PERSON,
        SCHEMA=json.dumps(Person.model_json_schema()),
        LITELLM_LOCAL_MODEL_COST_MAP="True",  # nothing is fetched
    )  # fmt: skip
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found


def test_a_chat(came: dict[str, Any]) -> None:
    text, n_tokens = came["chat"]

    assert says_something(text)
    assert n_tokens > 3


@pytest.mark.parametrize(("streamed", "whole"), [("stream", "chat"), ("claude_stream", "claude")])
def test_a_stream_says_the_same(came: dict[str, Any], streamed: str, whole: str) -> None:
    text = came[whole][0] if whole == "chat" else came[whole]

    assert "".join(came[streamed]) == text
    assert len(came[streamed]) > 5


def test_several_at_once(came: dict[str, Any]) -> None:
    assert came["many"] == [came["chat"][0]] * 4


def test_every_way_of_asking_gives_the_same_answer(came: dict[str, Any]) -> None:
    assert came["response"] == came["claude"] == came["chat"][0]


@pytest.mark.parametrize("name", ["tool", "claude_tool", "schema"])
def test_what_has_a_schema_follows_it(came: dict[str, Any], name: str) -> None:
    assert Person.model_validate_json(came[name])


def test_embeddings(came: dict[str, Any]) -> None:
    first, second = came["embedding"]

    assert first == second > 100


def test_errors_are_the_clients_own(came: dict[str, Any]) -> None:
    assert "temperature" in came["refused"]
    assert "key" in came["unknown_key"]
