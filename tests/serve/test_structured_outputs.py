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


# Triggers that stand within ordinary words, and so within tokens.
TAGS = {
    "structures": [
        {"begin": " the[", "schema": {"type": "integer"}, "end": "]"},
        {"begin": " a(", "schema": {"enum": ["x", "y"]}, "end": ")"},
    ],
    "triggers": [" the", " a"],
}
TAGGED = re.compile(r'((?! the| a)[\s\S]| the\[-?\d+\]| a\("[xy]"\))*')


def keeps_to_tags(text: str, is_whole: bool) -> bool:
    """Tells whether each trigger in a text begins its tag; the last of a text that is not whole may be cut off."""
    match = TAGGED.match(text)
    assert match is not None
    rest = text[match.end() :]
    return not rest or (not is_whole and len(rest) < 24 and " the" not in rest[1:] and " a" not in rest[1:])


@pytest.mark.parametrize("seed", [1, 2])
def test_free_text_has_tags_where_a_trigger_stands(client: openai.OpenAI, seed: int) -> None:
    messages: Any = [{"role": "user", "content": "Describe the sea and a ship."}]
    form: Any = {"type": "structural_tag", **TAGS}

    answer = client.chat.completions.create(
        model="any", messages=messages, max_tokens=80, seed=seed, extra_body={"response_format": form}
    )

    text, finish = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert keeps_to_tags(text, finish == "stop"), text
    assert " the[" in text or " a(" in text, text


def test_a_stream_with_logprobs_keeps_to_its_tags(client: openai.OpenAI) -> None:
    outputs = {"structural_tag": json.dumps({"type": "structural_tag", **TAGS})}

    with client.completions.create(
        model="any",
        prompt="Once upon",
        max_tokens=80,
        logprobs=2,
        stream=True,
        extra_body={"structured_outputs": outputs},
    ) as stream:
        choices = [chunk.choices[0] for chunk in stream if chunk.choices]

    text = "".join(choice.text for choice in choices)
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens or ()]
    assert keeps_to_tags(text, choices[-1].finish_reason == "stop"), text
    assert "".join(tokens) == text
    assert " the[" in text or " a(" in text, text
