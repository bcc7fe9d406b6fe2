"""The form of an answer as vLLM's clients ask for it, on chats, texts and responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.base.errors import InvalidGrammar, Refused
from tests.dialects.openai.responses.test_parse import call as response
from tests.dialects.openai.test_parse import call, chat, completion

__all__ = ["call"]  # the fixture: either endpoint

INTEGER = {"type": "integer"}
GRAMMAR = 'root ::= "yes" | "no"'
FORMS: list[tuple[str, Any, str]] = [
    ("json", INTEGER, "json"),
    ("regex", "[ab]+", "regex"),
    ("choice", ["yes", "no"], "choice"),
    ("grammar", GRAMMAR, "grammar"),
]


@pytest.mark.parametrize(("name", "value", "kind"), FORMS)
def test_both_ways_to_ask_for_a_form_make_the_same_grammar(call, name, value, kind):
    guided = call(**{f"guided_{name}": value}).job.sampling
    structured = call(structured_outputs={name: value}).job.sampling

    assert guided.grammar == structured.grammar != ""
    assert guided.grammar_param == f"guided_{kind}"
    assert structured.grammar_param == f"structured_outputs.{kind}"


def test_a_schema_may_be_written_as_a_string(call):
    as_text = call(guided_json='{"type": "integer"}').job.sampling.grammar

    assert as_text == call(guided_json=INTEGER).job.sampling.grammar


def test_a_text_completion_takes_a_response_format_as_chats_do():
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": INTEGER}}

    assert completion(response_format=form).job.sampling.grammar == completion(json_schema=INTEGER).job.sampling.grammar


def test_any_json_object_may_be_asked_for(call):
    asked = call(structured_outputs={"json_object": True}).job.sampling.grammar

    assert asked == call(response_format={"type": "json_object"}).job.sampling.grammar != ""
    assert call(structured_outputs={"json_object": False}).job.sampling.grammar == ""


def test_a_grammar_is_taken_as_it_stands(call):
    assert call(guided_grammar=GRAMMAR).job.sampling.grammar == GRAMMAR


def test_nothing_that_is_null_asks_for_anything(call):
    nothing = dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"))

    assert call(**nothing).job.sampling.grammar == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": INTEGER, "guided_regex": "a"}, "guided_json"),
        ({"guided_choice": ["a"], "guided_grammar": GRAMMAR}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "json_schema": INTEGER}, "json_schema"),
        ({"structured_outputs": {"choice": ["a"]}, "guided_choice": ["a"]}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": INTEGER, "json_object": True}}, "structured_outputs.json"),
    ],
)
def test_two_forms_are_refused_by_name(call, fields, param):
    with pytest.raises(Refused, match="contradict each other") as refused:
        call(**fields)

    assert refused.value.param == param


@pytest.mark.parametrize("form", [{f"guided_{name}": value} for name, value, _ in FORMS])
def test_a_form_and_a_grammar_contradict_each_other(call, form):
    with pytest.raises(Refused, match="contradict each other"):
        call(grammar=GRAMMAR, **form)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a("}, "guided_regex"),
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a" * 3000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_choice": [str(n) for n in range(1001)]}, "guided_choice"),
        ({"guided_choice": ["x" * 1000 + str(n) for n in range(1000)]}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_json": "no JSON"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": {"type": "thing"}}, "guided_json"),
        ({"structured_outputs": {}, "guided_json": {"$ref": "http://a/b"}}, "guided_json"),
        ({"structured_outputs": "x"}, "structured_outputs"),
    ],
)
def test_a_form_that_cannot_be_used_is_refused_by_name(call, fields, param):
    with pytest.raises(Refused) as refused:
        call(**fields)

    assert refused.value.param == param


TAG = {
    "structures": [{"begin": "<sum>", "schema": INTEGER, "end": "</sum>"}],
    "triggers": ["<sum>"],
}


def test_a_structural_tag_is_the_same_wherever_it_is_asked_for(call):
    in_format = call(response_format={"type": "structural_tag", **TAG}).job.sampling
    in_outputs = call(structured_outputs={"structural_tag": TAG}).job.sampling
    as_text = call(structured_outputs={"structural_tag": json.dumps({"type": "structural_tag", **TAG})}).job.sampling

    assert in_format.grammar == in_outputs.grammar == as_text.grammar != ""
    assert (in_format.grammar_param, in_outputs.grammar_param) == (
        "response_format",
        "structured_outputs.structural_tag",
    )


@pytest.mark.parametrize(
    ("tag", "place"),
    [
        ({}, ""),
        ({"triggers": ["<"]}, ""),
        ({**TAG, "format": {"type": "any_text"}}, ""),
        ({**TAG, "triggers": []}, ".triggers"),
        ({**TAG, "triggers": ["<a>"]}, ".structures[0].begin"),
        ({**TAG, "triggers": ["<sum>", "<b>"]}, ".triggers"),
        ({"structures": [{**TAG["structures"][0], "schema": {"type": "thing"}}], "triggers": ["<"]},
         ".structures[0].schema"),
        ({"format": {"type": "json_schema", "json_schema": {"$ref": "http://a/b"}}}, ".format.json_schema"),
        ({"format": {"type": "regex", "pattern": "("}}, ".format.pattern"),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, ".format.type"),
        ({"format": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "x"}]}},
         ".format.elements[0]"),
        ({"format": {"type": "any_text", "excludes": ["a", "ab"]}}, ".format"),
    ],
)  # fmt: skip
def test_a_structural_tag_that_cannot_be_used_is_refused_at_its_place(call, tag, place):
    with pytest.raises(Refused) as in_outputs:
        call(structured_outputs={"structural_tag": tag})
    with pytest.raises(Refused) as in_format:
        call(response_format={"type": "structural_tag", **tag})

    assert in_outputs.value.param == f"structured_outputs.structural_tag{place}"
    assert in_format.value.param == f"response_format{place}"


def test_forced_calls_and_a_grammar_contradict_each_other():
    tool = {"type": "function", "function": {"name": "rain"}}

    with pytest.raises(Refused, match="tool_choice contradict"):
        chat(tools=[tool], tool_choice="required", guided_grammar=GRAMMAR)


def test_a_response_takes_structured_outputs():
    (task,) = [response({"input": "Hi", "structured_outputs": {"choice": ["yes", "no"]}}).job]

    assert task.sampling.grammar == chat(guided_choice=["yes", "no"]).job.sampling.grammar


def test_a_response_takes_one_form():
    both = {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"choice": ["yes"]}}

    with pytest.raises(Refused, match="contradict each other"):
        response({"input": "Hi", **both})


def test_a_fault_of_a_grammar_is_told_of_the_field_that_it_came_in():
    fault = InvalidGrammar("line 1, column 3: nothing")

    assert fault.for_field("guided_grammar").param == "guided_grammar"
    assert str(fault.for_field("guided_grammar")) == "guided_grammar: line 1, column 3: nothing"
    assert fault.for_field("grammar") is fault
    assert "schema" in str(fault.for_field("guided_json"))
