"""Budgets of thoughts in prompts that no template made: whose tags they are, and where the thoughts begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import (
    Image,
    Job,
    ModelCard,
    MultimodalText,
    Pieces,
    Prompt,
    Rows,
    Text,
    ThoughtBudget,
    Tokens,
)
from corosrv.dialects.generation.fields import ThoughtFields, thought_message, thought_tokens
from corosrv.dialects.generation.thoughts import TaggedThoughtFields, with_budget
from corosrv.formats.callformats.description import AnswerFormat
from tests.support.vocabularies import ByteVocabulary

PLAIN = ModelCard("m", 1)
THINKER = ModelCard("m", 1, answer_format=AnswerFormat(("<think>", "</think>")))
TAGS = {"reasoning_budget_start_tag": "[", "reasoning_budget_end_tags": ["]"]}


def budget(*prompts: Prompt, card: ModelCard = THINKER, **fields: Any) -> ThoughtBudget | None:
    job = Job(prompts or (Text("Why?"),))
    return with_budget(job, TaggedThoughtFields(**fields), card, ByteVocabulary()).sampling.thoughts


def test_a_raw_prompt_has_the_budget_in_the_model_s_tags():
    assert budget(thinking_budget_tokens=7) == ThoughtBudget(7, "</think>", "<think>")


def test_without_a_budget_nothing_is_limited():
    card = replace(THINKER, thought_tokens=3, thought_message="So.")

    assert (budget(), budget(reasoning_budget=-1, card=card), budget(card=card, **TAGS)) == (None, None, None)


def test_the_request_s_tags_take_the_place_of_the_model_s():
    assert budget(reasoning_budget=2, **TAGS) == ThoughtBudget(2, "]", "[")
    assert budget(reasoning_budget=2, card=PLAIN, **TAGS) == ThoughtBudget(2, "]", "[")
    alone = {"reasoning_budget_start_tag": "[", "reasoning_budget_end_tag": "]"}
    assert budget(reasoning_budget=2, **alone) == ThoughtBudget(2, "]", "[")


def test_a_model_without_tags_has_no_thoughts_to_limit():
    assert budget(reasoning_budget=2, card=PLAIN) is None


@pytest.mark.parametrize(
    ("text", "is_begun"),
    [
        ("Why? <think>\n", True),
        ("Why? <think>Well, ", True),
        ("<think>a</think>b<think>", True),
        ("<think>a</think>", False),
        ("a</think>", False),
        ("<thin", False),
        ("", False),
    ],
)
def test_thoughts_that_the_prompt_has_begun_are_limited_at_once(text, is_begun):
    opening = "" if is_begun else "<think>"
    image = Image.of_pixels(1, 1, bytes(3))

    for prompt in (Text(text), Tokens(tuple(text.encode())), MultimodalText((image, text))):
        assert budget(prompt, reasoning_budget=2) == ThoughtBudget(2, "</think>", opening)


def test_embedding_rows_begin_no_thoughts():
    rows = Pieces((Rows.of_data(bytes(4), 1),))

    assert budget(rows, reasoning_budget=2) == ThoughtBudget(2, "</think>", "<think>")


def test_prompts_that_begin_thoughts_and_others_are_refused_in_one_request():
    with pytest.raises(Refused, match="some of the prompts begin thoughts") as refused:
        budget(Text("<think>"), Text("Why?"), thinking_token_budget=2)

    assert refused.value.param == "thinking_token_budget"
    assert budget(Text("<think>"), Text("Why? <think>"), reasoning_budget=2) == ThoughtBudget(2, "</think>")


def test_the_last_words_are_the_request_s_or_the_server_s():
    card = replace(THINKER, thought_message="So.")

    assert budget(card=card, reasoning_budget=2).message == "So."
    assert budget(card=card, reasoning_budget=2, reasoning_budget_message="Now.").message == "Now."
    assert budget(card=card, reasoning_budget=2, reasoning_budget_message="").message == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_budget_start_tag": "["}, "reasoning_budget_end_tags"),
        ({"reasoning_budget_end_tags": ["]"]}, "reasoning_budget_start_tag"),
        ({"reasoning_budget_end_tag": "]"}, "reasoning_budget_start_tag"),
        ({"reasoning_budget_start_tag": "\ud800", "reasoning_budget_end_tag": "]"}, "reasoning_budget_start_tag"),
        ({"reasoning_budget_start_tag": "[", "reasoning_budget_end_tag": "\ud800"}, "reasoning_budget_end_tags"),
        ({"reasoning_budget_message": "\ud800"}, "reasoning_budget_message"),
    ],
)
def test_tags_that_cannot_be_used_are_refused_by_name(fields, param):
    with pytest.raises(Refused) as refused:
        budget(reasoning_budget=2, **fields)

    assert refused.value.param == param


def test_several_ends_of_thoughts_are_refused_and_equal_or_empty_ones_are_not():
    tags = {"reasoning_budget_start_tag": "[", "reasoning_budget": 2}

    with pytest.raises(NotSupported, match="thoughts end with one tag here, not with 2"):
        budget(reasoning_budget_end_tags=["]", "}"], **tags)
    assert budget(reasoning_budget_end_tags=["]", "", "]"], **tags) == ThoughtBudget(2, "]", "[")


def test_a_budget_has_one_number_under_whichever_names():
    assert thought_tokens(ThoughtFields(reasoning_budget=0, thinking_budget_tokens=0)) == 0
    with pytest.raises(Refused, match="contradict each other"):
        thought_tokens(ThoughtFields(reasoning_budget=0, thinking_budget_tokens=-1))


def test_no_last_words_are_the_server_s_and_empty_ones_the_request_s():
    assert thought_message(ThoughtFields()) is None
    assert thought_message(ThoughtFields(reasoning_budget_message="")) == ""
