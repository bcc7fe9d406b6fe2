"""Grammars that begin late: which triggers a request may name, and what they begin."""

from __future__ import annotations

from typing import Any

import pytest

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, ModelCard, Sampling, Text, ThoughtBudget
from corosrv.dialects.chat.prepare import prepare
from corosrv.dialects.generation.fields import GrammarTrigger, LazyGrammarFields
from corosrv.dialects.generation.native import settings_without_biases, with_triggers
from corosrv.dialects.openai.chat import parse, schema
from corosrv.formats.bodies import decode
from corosrv.formats.callformats.description import AnswerFormat
from tests.support.vocabularies import ByteVocabulary

GRAMMAR = 'root ::= "a"'
THINKER = ModelCard("m", 1, answer_format=AnswerFormat(("<think>", "</think>")))


def job_of(grammar: str = GRAMMAR, **fields: Any) -> Job:
    job = Job((Text("x"),), sampling=Sampling(grammar=grammar))
    return with_triggers(job, LazyGrammarFields(**fields), ByteVocabulary)


def test_a_lazy_grammar_begins_with_the_first_of_its_triggers():
    triggers = [GrammarTrigger(1, "<call>"), GrammarTrigger(0, "[", 91), GrammarTrigger(1, "<call>")]

    job = job_of(grammar_lazy=True, grammar_triggers=triggers, preserved_tokens=["[", "two words"])

    assert (job.sampling.grammar_triggers, job.sampling.grammar) == (("<call>", "["), GRAMMAR)
    settings = settings_without_biases(job, stream=False)
    assert settings["grammar_lazy"] is True
    assert settings["grammar_triggers"] == [{"type": 1, "value": "<call>"}, {"type": 1, "value": "["}]


def test_triggers_of_a_grammar_that_is_not_lazy_begin_nothing():
    assert job_of(grammar_triggers=[GrammarTrigger(1, "x")]).sampling.grammar_triggers == ()
    assert job_of(grammar_lazy=False, grammar_triggers=[GrammarTrigger(2, "x")]).sampling.grammar_triggers == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar_lazy": True}, "grammar_triggers"),
        ({"grammar_lazy": True, "grammar_triggers": []}, "grammar_triggers"),
        ({"grammar_lazy": True, "grammar": ""}, "grammar_lazy"),
        ({"grammar_lazy": True, "grammar_triggers": [GrammarTrigger(1, "a"), GrammarTrigger(1, "\ud800")]},
         "grammar_triggers[1].value"),
        ({"preserved_tokens": ["\ud800"]}, "preserved_tokens[0]"),
    ],
)  # fmt: skip
def test_what_could_begin_nothing_is_refused(fields: dict[str, Any], param: str):
    with pytest.raises(Refused) as refused:
        job_of(**fields)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar_lazy": True, "grammar_triggers": [GrammarTrigger(2, "a+")]}, "grammar_triggers[0].type"),
        ({"grammar_lazy": True, "grammar_triggers": [GrammarTrigger(3, "a+")]}, "grammar_triggers[0].type"),
        ({"grammar_lazy": True, "grammar_triggers": [GrammarTrigger(1, "<pre>")]}, "grammar_triggers[0].value"),
        ({"preserved_tokens": ["a", "<pre>"]}, "preserved_tokens[1]"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(fields: dict[str, Any], param: str):
    with pytest.raises(NotSupported) as refused:
        job_of(**fields)

    assert refused.value.param == param


def test_thoughts_may_quote_a_trigger():
    chat = b"""{"messages": [{"role": "user", "content": "Hi"}], "grammar": "root ::= \\"a\\"", "grammar_lazy": true,
        "grammar_triggers": [{"type": 1, "value": "a"}]}"""
    body = decode(chat, schema.decoder)

    job = parse.call(body, THINKER, ByteVocabulary).job
    eager, _ = prepare(parse.conversation(body, THINKER), THINKER)

    assert job.sampling.grammar_triggers == ("a",)
    assert isinstance(job.sampling.thoughts, ThoughtBudget)
    assert eager.sampling.thoughts is None
