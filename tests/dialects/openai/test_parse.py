"""Bodies to calls: every parameter valid, wrong, out of range, null; and what is refused by name."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import pytest
from flask import Request
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Defaults, Job, Messages, ModelCard, Sampling, Text, ThoughtBudget, Tokens
from corosrv.dialects.generation.fields import EVERYWHERE
from corosrv.dialects.openai import completions
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.dialects.openai.structured_fields import CompletionFields, includes_usage
from corosrv.formats.callformats.description import AnswerFormat
from corosrv.web.http import body_reader
from tests.support.vocabularies import ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
HELLO = [{"role": "user", "content": "Hello"}]


CARD = ModelCard("tiny", created=1, capabilities=frozenset(("completion", "chat", "tools")))


class Asked(NamedTuple):
    """What a request asks for, to be compared."""

    job: Job
    stream: bool
    include_usage: bool


def parse(make, schema, sent: Any, card: ModelCard = CARD) -> Asked:
    """From the body's bytes to the call, as the routes do it."""
    raw = json.dumps(sent).encode()
    fields = body_reader.decode(REQUEST, raw, schema.decoder)
    made = make(fields, card, ByteVocabulary)
    return Asked(made.job, made.stream, includes_usage(fields))


def chat(defaults: Defaults = CARD.defaults, **sent: Any) -> Asked:
    return parse(
        chat_parse.call, chat_schema, {"messages": HELLO, **sent}, dataclasses.replace(CARD, defaults=defaults)
    )


def completion(defaults: Defaults = CARD.defaults, **sent: Any) -> Asked:
    return parse(
        completions.call,
        completions,
        {"prompt": "Hello", **sent},
        dataclasses.replace(CARD, defaults=defaults),
    )


@pytest.fixture(params=[chat, completion])
def call(request):
    """Either endpoint; what they share is tested on both."""
    return request.param


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 1.5, 1.5),
        ("top_k", 0, 0),
        ("top_k", -1, 0),
        ("top_k", 5, 5),
        ("top_p", 0.5, 0.5),
        ("top_p", 1, 1.0),
        ("min_p", 0, 0.0),
        ("typical_p", 0.9, 0.9),
        ("repeat_penalty", 1.1, 1.1),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("repeat_last_n", -1, -1),
        ("ignore_eos", True, True),
        ("seed", 0, 0),
        ("seed", 42, 42),
        ("seed", -1, None),
        ("seed", 2**32 + 7, 7),
        ("seed", -2, 2**32 - 2),
    ],
)
def test_a_sampling_parameter_reaches_the_sampler(call, name, value, expected):
    assert getattr(call(**{name: value}).job.sampling, name) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5),
        ("n", 0),
        ("n", 129),
        ("n", 1.5),
        ("n", "2"),
        ("n", True),
        ("seed", "1"),
        ("seed", 1.5),
        ("seed", 2**63),
        ("stop", 5),
        ("stop", [5]),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 65),
        ("stream", 1),
        ("stream", "true"),
        ("stream_options", "x"),
        ("temperature", -0.1),
        ("temperature", "0"),
        ("temperature", True),
        ("temperature", 1e7),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("min_p", 2),
        ("typical_p", -1),
        ("repeat_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repeat_last_n", -2),
        ("ignore_eos", "no"),
        ("cache_prompt", 1),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", -2),
        ("max_completion_tokens", -2),
        ("n_predict", -3),
        ("logit_bias", "x"),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": -101}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": "5"}),
        ("logit_bias", [[1]]),
        ("logit_bias", [[1, 2, 3]]),
        ("logit_bias", [[1.5, 2]]),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
    ],
)
def test_a_wrong_value_is_refused_and_named(call, name, value):
    with pytest.raises(Refused) as refused:
        call(**{name: value})

    assert str(refused.value.param).split("[")[0].split(".")[0] == name
    assert name in str(refused.value)


@pytest.mark.parametrize("name", sorted(set(CompletionFields.__struct_fields__)))
def test_null_is_an_absent_parameter(call, name):
    assert call(**{name: None}) == call()


@pytest.mark.parametrize("name", sorted(chat_schema.UNSUPPORTED))
def test_what_chat_does_not_support_is_refused_by_name(name):
    with pytest.raises(NotSupported, match=name) as refused:
        chat(**{name: {"some": "thing"}})

    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Hello", "Hello"),
        ("", ""),
        ([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}], "Hello"),
        ([], ""),
    ],
)
def test_a_prediction_is_a_text_in_one_piece_or_several(content, expected):
    assert chat(prediction={"type": "content", "content": content}).job.prediction == expected
    assert chat(prediction=None).job.prediction == ""


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("Hello", "prediction"),
        ({"content": "Hello"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "text", "content": "Hello"}, "prediction.type"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": ["Hello"]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
        (
            {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "prediction.content[0].type",
        ),
    ],
)
def test_a_prediction_of_anything_but_text_is_refused_with_its_place(prediction, param):
    with pytest.raises(Refused) as refused:
        chat(prediction=prediction)

    assert refused.value.param == param


@pytest.mark.parametrize("name", sorted(completions.UNSUPPORTED))
def test_what_completions_do_not_support_is_refused_by_name(name):
    with pytest.raises(NotSupported, match=name) as refused:
        completion(**{name: {"some": "thing"}})

    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


NEUTRAL = [(name, value) for name, values in EVERYWHERE.items() for value in (None, *values)]


@pytest.mark.parametrize(("name", "value"), NEUTRAL)
def test_a_value_that_asks_for_nothing_is_accepted(call, name, value):
    assert call(**{name: value}) == call()


def test_the_number_one_does_not_stand_for_true():
    with pytest.raises(NotSupported, match="n_indent"):
        completion(n_indent=False)


@pytest.mark.parametrize("number", [0, 0.0])
def test_a_zero_is_a_zero_with_or_without_a_point(call, number):
    assert call(dry_multiplier=number) == call()


@pytest.mark.parametrize("name", ["user", "metadata", "store", "prompt_cache_key", "no_such_thing"])
def test_what_has_no_meaning_here_is_ignored(call, name):
    assert call(**{name: {"any": "thing"}}) == call()


def test_defaults_are_the_operator_s(call):
    chosen = call(Defaults(max_tokens=7, temperature=0.1, seed=3)).job

    assert (chosen.max_tokens, chosen.sampling.temperature, chosen.sampling.seed) == (7, 0.1, 3)


def test_a_request_changes_what_it_names_of_the_operator_s_defaults(call):
    defaults = Defaults(max_tokens=7, temperature=0.1, seed=3, more={"top_k": 20, "min_p": 0.0, "top_p": 0.8})

    said_nothing = call(defaults).job.sampling
    chosen = call(defaults, top_k=5, min_p=0.2).job.sampling

    assert (said_nothing.top_k, said_nothing.min_p, said_nothing.top_p) == (20, 0.0, 0.8)
    assert (chosen.top_k, chosen.min_p, chosen.top_p) == (5, 0.2, 0.8)


def test_a_request_that_says_nothing_samples_as_documented(call):
    assert call().job.sampling == Sampling()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, 99),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 4, "max_tokens": 5, "n_predict": 6}, 4),
        ({"max_completion_tokens": None, "max_tokens": 5, "n_predict": 6}, 5),
        ({"n_predict": 6}, 6),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 10**12}, 10**12),
    ],
)
def test_the_first_limit_that_is_there_wins(call, sent, expected):
    assert call(Defaults(max_tokens=99, temperature=0.8, seed=None), **sent).job.max_tokens == expected


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens", "n_predict"])
def test_no_tokens_at_all_are_refused_in_chat_only(name):
    with pytest.raises(Refused, match=name):
        chat(**{name: 0})

    assert completion(**{name: 0}).job.max_tokens == 0


@pytest.mark.parametrize(
    ("stop", "expected"), [("END", ("END",)), (["a", "b"], ("a", "b")), ([], ()), (["\n"], ("\n",))]
)
def test_stop_strings_may_be_one_or_many(call, stop, expected):
    assert call(stop=stop).job.stop == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, ()),
        ({"5": 1}, ((5, 1.0),)),
        ({"5": -100, "6": False}, ((5, -100.0), (6, -math.inf))),
        ([[5, 1.5], [" no", False]], ((5, 1.5), (" no", -math.inf))),
    ],
)
def test_logit_bias_is_an_object_or_a_list_of_pairs(call, sent, expected):
    assert call(logit_bias=sent).job.sampling.logit_bias == expected


@pytest.mark.parametrize("usage", [True, False, None])
def test_usage_comes_with_a_stream_that_asks_for_it(call, usage):
    chosen = call(stream=True, stream_options={"include_usage": usage})

    assert (chosen.stream, chosen.include_usage) == (True, bool(usage))


@pytest.mark.parametrize("sent", [{}, {"stream": False}])
def test_stream_options_without_a_stream_are_refused(call, sent):
    with pytest.raises(Refused, match="stream_options"):
        call(stream_options={"include_usage": True}, **sent)


def test_several_answers_are_tasks_of_one_job(call):
    assert call(n=3).job.n_tasks == 3


# Messages.


def message(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(arguments: Any, name: str = "rain", id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("x", "messages"),
        ([5], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([message("robot")], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([message("user", None)], "messages[0].content"),
        ([message("system", None)], "messages[0].content"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([message("user", 5)], "messages[0].content"),
        ([message("user", ["x"])], "messages[0].content[0]"),
        ([message("user", [{"type": "text"}])], "messages[0].content[0].text"),
        ([message("user", [{"type": "text", "text": 5}])], "messages[0].content[0].text"),
        ([message("user"), message("user", [{"type": "image_url"}])], "messages[1].content[0]"),
        ([message("assistant", [{"type": "refusal", "text": "x"}])], "messages[0].content[0].refusal"),
        ([message("tool")], "messages[0].tool_call_id"),
        ([message("tool", None, tool_call_id="1")], "messages[0].content"),
        ([message("tool", tool_call_id=1)], "messages[0].tool_call_id"),
        ([message("assistant", tool_calls=[{"id": "1"}])], "messages[0].tool_calls[0].function"),
        ([message("assistant", tool_calls={})], "messages[0].tool_calls"),
        ([message("user", tool_calls=[called("{}")])], "messages[0].tool_calls"),
        *(
            ([message("assistant", None, tool_calls=[called(wrong)])], "messages[0].tool_calls[0].function.arguments")
            for wrong in (5, [], True)
        ),
        ([message("assistant", function_call={"name": "f"})], "messages[0]"),
        ([message("user")] * 2049, "messages"),
        ([message("assistant"), message("assistant")], "messages"),
    ],
)
def test_wrong_messages_are_refused_with_their_place(messages, param):
    with pytest.raises(Refused) as refused:
        chat(messages=messages)

    assert refused.value.param == param


def test_calls_and_their_results_reach_the_template():
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "tool_calls": [called('{"city": "Köln"}'), called("", "now", "2")],
        },
        message("tool", "dry", tool_call_id="call_1"),
        message("tool", [{"type": "text", "text": "noon"}], tool_call_id="2", name="time"),
    ]

    (prompt,) = chat(messages=messages).job.prompts

    assert prompt.messages[1:] == (
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "rain", "arguments": {"city": "Köln"}}},
                {"id": "2", "type": "function", "function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "dry", "tool_call_id": "call_1", "name": "rain"},
        {"role": "tool", "content": "noon", "tool_call_id": "2", "name": "time"},
    )


def test_a_message_with_calls_is_no_beginning_of_an_answer():
    (prompt,) = chat(messages=[*HELLO, message("assistant", None, tool_calls=[called("{}")])]).job.prompts

    assert (prompt.continue_final, prompt.add_generation_prompt) == (False, True)


def test_messages_are_required():
    with pytest.raises(Refused, match="messages is required") as refused:
        parse(chat_parse.call, chat_schema, {"model": "x"})

    assert (refused.value.param, refused.value.code) == ("messages", "missing_required_parameter")


def test_a_developer_speaks_as_the_system():
    assert prompt(messages=[message("developer", "Be brief."), *HELLO]).messages[0]["role"] == "system"


PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]


def test_text_parts_are_lines():
    assert prompt(messages=[message("user", PARTS)]).messages[0]["content"] == "Hel\nlo"
    assert prompt(messages=[message("assistant", PARTS), *HELLO]).messages[0]["content"] == "Hel\nlo"


def test_the_parts_of_what_is_to_be_continued_are_paragraphs():
    assert prompt(messages=[*HELLO, message("assistant", PARTS)]).messages[1]["content"] == "Hel\n\nlo"


def test_a_refusal_is_something_that_the_assistant_said():
    refusal = [{"type": "refusal", "refusal": "No."}]

    assert prompt(messages=[message("user"), message("assistant", refusal), message("user")]) == prompt(
        messages=[message("user"), message("assistant", "No."), message("user")]
    )


def test_an_assistant_may_have_said_nothing():
    assert prompt(messages=[message("assistant", None), *HELLO]).messages[0]["content"] == ""


def prompt(**sent: Any) -> Messages:
    (only,) = chat(**sent).job.prompts
    assert isinstance(only, Messages)
    return only


CONTINUED = [*HELLO, message("assistant", "Well")]


@pytest.mark.parametrize(("fields", "echo"), [({"echo": True}, True), ({"echo": False}, False), ({}, False)])
def test_an_echo_is_asked_for(fields, echo):
    decoded = chat_schema.decoder.decode(json.dumps({"messages": CONTINUED, **fields}))

    assert chat_parse.conversation(decoded, CARD).echo is echo


@pytest.mark.parametrize(
    ("sent", "add_generation_prompt", "continue_final"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"messages": CONTINUED}, False, True),
        ({"messages": CONTINUED, "continue_final_message": True}, False, True),
        ({"messages": CONTINUED, "continue_final_message": False}, True, False),
        ({"messages": CONTINUED, "add_generation_prompt": True}, True, False),
        ({"messages": CONTINUED, "add_generation_prompt": False, "continue_final_message": False}, False, False),
    ],
)
def test_a_final_assistant_message_is_continued(sent, add_generation_prompt, continue_final):
    rendered = prompt(**sent)

    assert rendered.add_generation_prompt is add_generation_prompt
    assert rendered.continue_final is continue_final


THOUGHT = [*HELLO, {"role": "assistant", "content": None, "reasoning_content": "Let me "}]
ANSWERED = [*HELLO, {"role": "assistant", "reasoning_content": "Let me ", "content": "Well"}]


@pytest.mark.parametrize(
    ("messages", "member", "is_thought"),
    [
        (THOUGHT, None, True),
        (THOUGHT, True, True),
        (THOUGHT, "reasoning_content", True),
        (THOUGHT, "content", False),
        (THOUGHT, False, False),
        (ANSWERED, None, False),
        (CONTINUED, "content", False),
    ],
)
def test_thoughts_without_a_text_go_on_as_thoughts(messages, member, is_thought):
    card = dataclasses.replace(CARD, answer_format=AnswerFormat(("<think>", "</think>")))
    decoded = chat_schema.decoder.decode(json.dumps({"messages": messages, "continue_final_message": member}))

    (rendered,) = chat_parse.conversation(decoded, card).job.prompts

    assert (rendered.continue_final, rendered.continue_thoughts) == (member is not False, is_thought)


@pytest.mark.parametrize(
    "sent",
    [
        {"messages": ANSWERED, "continue_final_message": "reasoning_content"},
        {"messages": CONTINUED, "continue_final_message": "reasoning_content"},
        {"messages": CONTINUED, "continue_final_message": "thoughts"},
        {"messages": CONTINUED, "add_generation_prompt": True, "continue_final_message": True},
        {"continue_final_message": True},
    ],
)
def test_contradictions_about_the_last_message_are_refused(sent):
    with pytest.raises(Refused, match="continue_final_message"):
        chat(**sent)


def test_a_template_in_a_request_is_refused():
    with pytest.raises(NotSupported, match="chat_template"):
        chat(chat_template="{{ messages }}")


@pytest.mark.parametrize(
    ("sent", "arguments"), [('{"city": "Bonn"}', {"city": "Bonn"}), ({"city": "Bonn"}, {"city": "Bonn"}), ("{", "{")]
)
def test_the_arguments_of_an_earlier_call_come_as_text_as_an_object_or_cut_off(sent, arguments):
    (turn,) = chat(messages=[message("assistant", None, tool_calls=[called(sent)])]).job.prompts[0].messages

    assert turn["tool_calls"][0]["function"]["arguments"] == arguments


def test_arguments_for_the_template_are_passed_on():
    assert prompt(chat_template_kwargs={"enable_thinking": False}).template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize(
    "arguments",
    [
        {"messages": ""},
        {"bos_token": ""},
        {"raise_exception": ""},
        {"__class__": ""},
        {"_counted": ""},
        {"a b": ""},
        {"": ""},
        {"a" * 65: ""},
        {"a": []},
        {"a": {}},
        {"a": "x" * 1025},
        "x",
    ],
)
def test_other_arguments_for_the_template_are_refused(arguments):
    with pytest.raises(Refused, match="chat_template_kwargs"):
        chat(chat_template_kwargs=arguments)


# Prompts.


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("Hello", (Text("Hello"),)),
        ("", (Text(""),)),
        ("a\0b", (Text("a\0b"),)),
        ([1, 2], (Tokens((1, 2)),)),
        (["a", "b"], (Text("a"), Text("b"))),
        ([[1], [2, 3]], (Tokens((1,)), Tokens((2, 3)))),
        (["a", [1]], (Text("a"), Tokens((1,)))),
        (["a", 5], (Tokens((97, 5)),)),
        ([1, "ab", 2, "c"], (Tokens((1, 97, 98, 2, 99)),)),
        ([["a", 5], "b"], (Tokens((97, 5)), Text("b"))),
        ({"prompt_string": "a"}, (Text("a"),)),
        ([[1], {"prompt_string": "a"}], (Tokens((1,)), Text("a"))),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, (Text("a b"),)),
    ],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_them(sent, expected):
    assert completion(prompt=sent).job.prompts == expected


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ({}, "prompt.prompt_string"),
        ({"prompt_string": 5}, "prompt.prompt_string"),
        ({"prompt_string": "x", "multimodal_data": ["AAAA"]}, "prompt.multimodal_data"),
        ({"content": [{"type": "image_url"}]}, "prompt.content[0]"),
        ({"content": [{"type": "text"}]}, "prompt.content[0].text"),
        ({"content": "x"}, "prompt.prompt_string"),
        ([1, 2.5], "prompt[1]"),
        ([[1, []]], "prompt[0][1]"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        (["a", 5.0], "prompt[1]"),
        (["a"] * 65, "prompt"),
    ],
)
def test_a_wrong_prompt_is_refused_with_its_place(sent, param):
    with pytest.raises(Refused) as refused:
        completion(prompt=sent)

    assert refused.value.param == param


@pytest.mark.parametrize("half", ["\udc00", "\udfff x", "\udc00\udc00"])
@pytest.mark.parametrize("name", ["prompt", "stop", "model", "grammar"])
def test_half_a_surrogate_pair_is_no_character(name, half):
    with pytest.raises(Refused):
        completion(**{name: half})


def test_a_grammar_goes_with_the_sampling_and_null_or_empty_is_none(call):
    assert call(grammar='root ::= "x"').job.sampling.grammar == 'root ::= "x"'
    assert call(grammar="").job.sampling.grammar == ""
    assert call(grammar=None).job.sampling.grammar == ""


@pytest.mark.parametrize("wrong", [1, True, [], {}, ['root ::= "x"']])
def test_a_grammar_that_is_no_text_is_refused(call, wrong):
    with pytest.raises(Refused) as refused:
        call(grammar=wrong)

    assert refused.value.param == "grammar"


# Tools and forms.

NOBODY = {"type": "function", "function": {"name": "rain"}}
RAIN = {
    "type": "function",
    "function": {
        "name": "rain",
        "description": "Tells whether it rains.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}


def function(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": members}


def test_tools_reach_the_template_in_one_form():
    bare, full = (chat(tools=[tool]).job.prompts[0].tools[0] for tool in (NOBODY, RAIN))

    empty = {"type": "object", "properties": {}}
    assert bare == {"type": "function", "function": {"name": "rain", "description": "", "parameters": empty}}
    assert full["function"] == {
        "name": "rain",
        "description": "Tells whether it rains.",
        "parameters": RAIN["function"]["parameters"],
    }


def allowed(mode: str, *names: str) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name=name) for name in names]}}


@pytest.mark.parametrize("nothing", [{}, {"tools": None}, {"tools": []}, {"tools": [NOBODY], "tool_choice": "none"}])
def test_without_tools_to_call_nothing_is_shown_and_nothing_forced(nothing):
    job = chat(**nothing).job

    assert job == chat().job


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function()]}, "tools[0].function.name"),
        ({"tools": [RAIN, function(name="a b")]}, "tools[1].function.name"),
        ({"tools": [function(name='a"\n')]}, "tools[0].function.name"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [function(name="é")]}, "tools[0].function.name"),
        ({"tools": [function(name="x" * 65)]}, "tools[0].function.name"),
        ({"tools": [function(name="a", description=5)]}, "tools[0].function.description"),
        ({"tools": [function(name="a", parameters="x")]}, "tools[0].function.parameters"),
        ({"tools": [function(name="a", parameters={"type": "thing"})]}, "tools[0].function.parameters"),
        ({"tools": [function(name="a", parameters={"$ref": "http://a/b"})]}, "tools[0].function.parameters"),
        ({"tools": [RAIN, RAIN]}, "tools[1].function.name"),
        ({"tools": [function(name=f"t{i}") for i in range(129)]}, "tools"),
        ({"tools": [RAIN], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [RAIN], "tool_choice": 5}, "tool_choice"),
        ({"tools": [RAIN], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [RAIN], "tool_choice": function(name="sun")}, "tool_choice"),
        ({"tools": [RAIN], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [RAIN], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [RAIN], "tool_choice": allowed("none", "rain")}, "tool_choice.allowed_tools.mode"),
        ({"tools": [RAIN], "tool_choice": allowed("auto", "rain", "sun")}, "tool_choice.allowed_tools.tools[1]"),
        ({"tools": [RAIN], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": function(name="rain")}, "tool_choice"),
        ({"tools": [RAIN], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"tools": [RAIN], "grammar": 'root ::= "x"'}, "grammar"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "schema": "x"}}, "response_format.schema"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "x"'}, "grammar"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema"),
        ({"response_format": {"type": "json_object", "value": {"type": "thing"}}}, "response_format.value"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"type": "thing"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "structured_outputs.json"),
        ({"json_schema": {}, "grammar": 'root ::= "x"'}, "grammar"),
        ({"json_schema": {"minLength": 5, "maxLength": 2, "type": "string"}}, "json_schema"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"n_probs": 101}, "n_probs"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"reasoning_format": "harmony"}, "reasoning_format"),
    ],
)  # fmt: skip
def test_wrong_tools_and_forms_are_refused_by_name(fields, param):
    with pytest.raises(Refused) as refused:
        chat(**fields)

    assert refused.value.param == param


def test_an_answer_that_is_begun_cannot_be_forced():
    begun = [*HELLO, message("assistant", "It")]

    for forced in ({"tools": [RAIN], "tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(Refused, match="begun"):
            chat(messages=begun, **forced)


@pytest.mark.parametrize(
    ("fields", "n_probs"),
    [
        ({}, -1),
        ({"logprobs": False}, -1),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"n_probs": 0}, -1),
        ({"n_probs": 3}, 3),
    ],
)
def test_as_many_tokens_are_listed_as_are_asked_for(fields, n_probs):
    assert chat(**fields).job.sampling.n_probs == n_probs


def test_how_hard_to_think_is_told_to_the_template():
    assert chat(reasoning_effort="low").job.prompts[0].template_arguments == {"reasoning_effort": "low"}
    assert chat(reasoning_effort="none").job.prompts[0].template_arguments["enable_thinking"] is False
    kept = chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}).job.prompts[0]
    assert kept.template_arguments["enable_thinking"] is True


@pytest.mark.parametrize(
    "name", ["reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"]
)
def test_a_budget_of_thoughts_has_the_names_of_other_servers(name):
    card = dataclasses.replace(CARD, answer_format=AnswerFormat(("<think>", "</think>")))

    def thoughts(**sent: Any) -> ThoughtBudget | None:
        return parse(chat_parse.call, chat_schema, {"messages": HELLO, **sent}, card).job.sampling.thoughts

    assert thoughts(**{name: 7, "reasoning_budget_message": "So."}) == ThoughtBudget(7, "</think>", "<think>", "So.")
    assert thoughts(**{name: -1}) is None
    assert thoughts() is None


def test_budgets_of_thoughts_that_differ_are_refused():
    with pytest.raises(Refused, match="reasoning_budget and thinking_budget_tokens contradict each other"):
        chat(reasoning_budget=1, thinking_budget_tokens=2)


@pytest.mark.parametrize("value", ["false", 0, None])
def test_whether_to_think_is_true_or_false(value):
    with pytest.raises(Refused, match="must be true or false"):
        chat(chat_template_kwargs={"enable_thinking": value})


# Anything at all.

NAMES = sorted(
    {
        *chat_schema.ChatBody.__struct_fields__,
        *completions.CompletionBody.__struct_fields__,
        *chat_schema.UNSUPPORTED,
    }
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": JSON}),
    max_size=3,
)


def outcome(make, schema, sent: Any) -> Asked | Refused:
    """What became of a body; anything else that is raised fails the test."""
    try:
        return parse(make, schema, sent)
    except Refused as refused:
        return refused


@given(sent=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5), messages=MESSAGES | JSON)
def test_any_object_gives_a_call_or_a_refusal(sent, messages):
    for make, schema in ((chat_parse.call, chat_schema), (completions.call, completions)):
        made = outcome(make, schema, {"messages": messages, "prompt": "x", **sent})

        assert str(made) if isinstance(made, Refused) else made.job.n_tasks >= 1


@given(sent=JSON.filter(lambda value: not isinstance(value, dict)))
def test_what_is_no_object_is_no_body(sent):
    assert isinstance(outcome(completions.call, completions, sent), Refused)


def test_a_schema_at_the_top_holds_for_the_whole_answer(call):
    assert "root" in call(json_schema={"type": "integer"}).job.sampling.grammar


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object", "value": {"type": "integer"}}},
        {"structured_outputs": {"json": {"type": "integer"}}},
    ],
)
def test_a_schema_may_stand_where_other_servers_clients_put_it(form):
    assert chat(**form).job.sampling.grammar == chat(json_schema={"type": "integer"}).job.sampling.grammar != ""
