"""Answers in a form that vLLM's clients ask for, from SmolLM2: always kept to, on chats, texts and responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.server import Server

pytestmark = pytest.mark.model

PHONE = r"\d{3}-\d{4}"
RIVERS = ["Rhine", "Danube", "the Nile"]
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
GRAMMAR = 'root ::= "<" [a-z]{3} ">"'


@pytest.fixture
def client(real: Server) -> Iterator[openai.OpenAI]:
    with real.client(timeout=120) as client:
        yield client


def is_person(text: str) -> bool:
    return isinstance(json.loads(text)["age"], int)


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"guided_regex": PHONE}, re.compile(PHONE).fullmatch),
    ({"guided_choice": RIVERS}, RIVERS.__contains__),
    ({"guided_grammar": GRAMMAR}, re.compile("<[a-z]{3}>").fullmatch),
    ({"guided_json": PERSON}, is_person),
    ({"structured_outputs": {"regex": PHONE}}, re.compile(PHONE).fullmatch),
    ({"structured_outputs": {"choice": RIVERS}}, RIVERS.__contains__),
]


@pytest.mark.parametrize(("form", "is_right"), FORMS)
def test_a_chat_keeps_to_the_form(client: openai.OpenAI, form: dict[str, Any], is_right: Any) -> None:
    messages: Any = [{"role": "user", "content": "Say something."}]

    answer = client.chat.completions.create(
        model="any", messages=messages, max_tokens=60, temperature=1.5, seed=1, extra_body=form
    )

    assert is_right(answer.choices[0].message.content), answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("form", "is_right"), FORMS[:3])
def test_a_text_keeps_to_the_form(client: openai.OpenAI, form: dict[str, Any], is_right: Any) -> None:
    answer = client.completions.create(model="any", prompt="It is", max_tokens=60, extra_body=form)

    assert is_right(answer.choices[0].text), answer.choices[0].text


def test_a_response_keeps_to_the_form(client: openai.OpenAI) -> None:
    form = {"structured_outputs": {"choice": RIVERS}}

    answer = client.responses.create(model="any", input="Name a river.", extra_body=form)

    assert answer.output_text in RIVERS


def test_a_wrong_grammar_is_a_400_that_names_its_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="guided_grammar") as refused:
        client.completions.create(model="any", prompt="x", extra_body={"guided_grammar": "root ::= ("})

    assert refused.value.param == "guided_grammar"
