"""What is learnt of a format from conversations that a function renders, and where learning ends."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from corosrv.base.errors import Refused
from corosrv.base.processor import thread_seconds
from corosrv.formats.callformats.description import (
    BARE,
    HERMES,
    AnswerFormat,
    ArgumentRow,
    CallField,
    CallFormat,
    Notation,
    Spelling,
    completed,
    markers_for,
    shared_end,
    shared_start,
)
from corosrv.formats.callformats.learn import learn_calls
from corosrv.formats.callformats.learn_answer import USER, Probe, Rendering, learn_answer
from corosrv.formats.callformats.writer import WrittenCall, write_calls
from corosrv.models.engine.traits import find_traits

END = "<end>"
NAME, ID, INDEX, ARGUMENTS = CallField
Call = dict[str, Any]
Writing = Callable[[list[Call]], str]


def chat(writing: Writing, before_end: str = "", opening: str = "") -> Rendering:
    """Makes the rendering of a template that writes calls so. `opening`: what every turn of the model begins with."""

    def render(messages: list[dict[str, Any]], add_generation_prompt: bool = False, **_: Any) -> str:
        text = ""
        for message in messages:
            content = message.get("content") or ""
            if message["role"] == "assistant":
                calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
                content = opening + content + (writing(calls) if calls else "") + before_end
            text += f"<{message['role']}>{content}{END}"
        return text + ("<assistant>" + opening if add_generation_prompt else "")

    return render


def each(write: Callable[[int, Call], str], joint: str = "", start: str = "", end: str = "") -> Writing:
    """Makes a writing of calls one after the other. `write` gets the number of a call and the call."""
    return lambda calls: start + joint.join(write(number, call) for number, call in enumerate(calls)) + end


def learnt(rendering: Rendering, answer: AnswerFormat = BARE) -> CallFormat | None:
    found = learn_calls(Probe(rendering, seconds=9), answer, [END])
    assert found is not None
    return found.form


def tagged(_: int, call: Call) -> str:
    return f'<call>{{"name": "{call["name"]}", "arguments": {json.dumps(call["arguments"])}}}</call>'


def row(pair: Callable[[str, Any], str], between: str = "") -> Callable[[dict[str, Any]], str]:
    return lambda arguments: between.join(pair(key, value) for key, value in arguments.items())


def xml(key: str, value: Any) -> str:
    return f"<arg={key}>{value if isinstance(value, str) else json.dumps(value)}</arg>"


def typed(key: str, value: Any) -> str:
    word = {str: "string", int: "number", bool: "boolean", type(None): "null", dict: "object", list: "array"}
    text = value if isinstance(value, str) else json.dumps(value)
    return f'<arg name="{key}" type="{word[type(value)]}">{text}</arg>'


def notation(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{notation(value[key])}" for key in sorted(value)) + "}"
    return f"<|'|>{value}<|'|>" if isinstance(value, str) else json.dumps(value)


def call_of(rendering: Callable[[dict[str, Any]], str], end: str = "</call>") -> Callable[[int, Call], str]:
    return lambda _, call: f"<call={call['name']}>{rendering(call['arguments'])}{end}"


LEARNT = {
    "JSON between tags": (
        each(tagged),
        CallFormat(
            start='<call>{"name": "', inner=('", "arguments": ',), joint='}</call><call>{"name": "', end="}</call>",
            markers=("<call>",),
        ),
    ),
    "a list of calls": (
        each(lambda _, call: f'{{"name": "{call["name"]}", "args": {json.dumps(call["arguments"])}}}',
             ", ", "[TOOL_CALLS][", "]"),
        CallFormat(
            start='[TOOL_CALLS][{"name": "', inner=('", "args": ',), joint='}, {"name": "', end="}]",
            markers=("[TOOL_CALLS]", '[{"name":'), lead="[TOOL_CALLS]",
        ),
    ),
    "an id behind the name": (
        each(lambda _, call: f"<call>{call['name']}|{call['id']}|{json.dumps(call['arguments'])}</call>"),
        CallFormat(
            start="<call>", inner=("|", "|"), fields=(NAME, ID, ARGUMENTS), joint="</call><call>", end="</call>",
            markers=("<call>",),
        ),
    ),
    "an id behind the arguments": (
        each(lambda _, call: f"<call>{call['name']} {json.dumps(call['arguments'])} {call['id']}</call>"),
        CallFormat(
            start="<call>", inner=(" ", " "), fields=(NAME, ARGUMENTS, ID), joint="</call><call>", end="</call>",
            markers=("<call>",),
        ),
    ),
    "a number behind the name": (
        each(lambda n, call: f"<call>{call['name']}:{n}>{json.dumps(call['arguments'])}</call>"),
        CallFormat(
            start="<call>", inner=(":", ">"), fields=(NAME, INDEX, ARGUMENTS), joint="</call><call>", end="</call>",
            markers=("<call>",),
        ),
    ),
    "a number before the name, from one on": (
        each(lambda n, call: f"<call>{n + 1}. {call['name']}={json.dumps(call['arguments'])}</call>"),
        CallFormat(
            start="<call>", inner=(". ", "="), fields=(INDEX, NAME, ARGUMENTS), joint="</call><call>", end="</call>",
            markers=("<call>",), first_index=1,
        ),
    ),
    "the same number in all calls": (
        each(lambda _, call: f"<call v1>{call['name']}={json.dumps(call['arguments'])}</call>"),
        CallFormat(
            start="<call v1>", inner=("=",), joint="</call><call v1>", end="</call>", markers=("<call v1>",),
        ),
    ),
    "sorted arguments": (
        each(call_of(lambda arguments: row(xml)(dict(sorted(arguments.items()))))),
        CallFormat(
            start="<call=", inner=(">",), joint="</call><call=", end="</call>", markers=("<call=",),
            arguments=ArgumentRow("<arg=", ">", "", "</arg>", "<arg=", "", sorts_keys=True),
        ),
    ),
    "nothing around a call": (
        each(lambda _, call: f'{{"name": "{call["name"]}", "parameters": {json.dumps(call["arguments"])}}}', "\n"),
        CallFormat(
            start='{"name": "', inner=('", "parameters": ',), joint='}\n{"name": "', end="}",
            markers=('{"name":',), is_alone=True,
        ),
    ),
    "keys without quotes": (
        each(call_of(notation)),
        CallFormat(
            start="<call=", inner=(">",), joint="</call><call=", end="</call>", markers=("<call=",),
            arguments=Notation("<|'|>", sorts_keys=True),
        ),
    ),
    "tags around arguments": (
        each(call_of(row(xml))),
        CallFormat(
            start="<call=", inner=(">",), joint="</call><call=", end="</call>", markers=("<call=",),
            arguments=ArgumentRow("<arg=", ">", "", "</arg>", "<arg=", ""),
        ),
    ),
    "words of types": (
        each(call_of(row(typed))),
        CallFormat(
            start="<call=", inner=(">",), joint="</call><call=", end="</call>", markers=("<call=",),
            arguments=ArgumentRow(
                '<arg name="', '" type="', '">', "</arg>", '<arg name="', "",
                tuple((word, word) for word in ("string", "number", "boolean", "null", "object", "array")),
            ),
        ),
    ),
    "values as Python has them": (
        each(lambda _, call: f"{call['name']}({row(lambda key, value: f'{key}={value!r}', ', ')(call['arguments'])})",
             ", ", "<calls>[", "]"),
        CallFormat(
            start="<calls>[", inner=("(",), joint="), ", end=")]", markers=("<calls>",),
            arguments=ArgumentRow(
                "", "=", "", "", ", ", "", quote="'", constants=Spelling.PYTHON, containers=Spelling.PYTHON
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNT)
def test_a_format_is_learnt_from_what_a_template_renders(name):
    writing, form = LEARNT[name]

    assert learnt(chat(writing)) == form


def test_one_call_at_a_time_is_learnt_where_a_template_refuses_two():
    def write(calls: list[Call]) -> str:
        if len(calls) > 1:
            raise Refused("one at a time")
        return tagged(0, calls[0])

    form = learnt(chat(write))

    assert form is not None
    assert (form.is_single, form.repeats, form.end) == (True, False, "}</call>")


def test_calls_that_stand_in_another_order_are_taken_one_at_a_time():
    def write(calls: list[Call]) -> str:
        names = "".join(f"<call>{call['name']}" for call in calls)
        return names + "".join(f"|{json.dumps(call['arguments'])}" for call in calls)

    form = learnt(chat(write))

    assert form is not None
    assert form.is_single


def test_what_the_model_writes_before_it_ends_belongs_to_a_call_if_it_is_short():
    near, far = learnt(chat(each(tagged), "</turn>")), learnt(chat(each(tagged), "<far>" * 20))

    assert near is not None
    assert far is not None
    assert (near.end, near.trailer, far.end, far.trailer) == ("}</call>", "</turn>", "}</call>", "")


@pytest.mark.parametrize(("n_characters", "is_learnt"), [(300, True), (700, False)])
def test_a_format_of_very_long_texts_is_not_learnt(n_characters, is_learnt):
    long = each(lambda _, call: f"<call>{call['name']}{'=' * n_characters}{json.dumps(call['arguments'])}</call>")
    both = each(lambda _, call: tagged(0, call), "=" * 2 * n_characters)

    assert [learnt(chat(writing)) is not None for writing in (long, both)] == [True, is_learnt]


def refusing(*types: type) -> Callable[[str, Any], str]:
    def write(key: str, value: Any) -> str:
        if isinstance(value, types):
            raise Refused("not these")
        return xml(key, value)

    return write


NOT_DESCRIBED = {
    "values before their keys": row(lambda key, value: f"<{value} is {key}>"),
    "other ends of strings": row(lambda key, value: f"<{key}>{value}</{type(value).__name__}>"),
    "objects that are not told": row(lambda key, value: xml(key, "object" if isinstance(value, dict) else value)),
    "numbers that are refused": row(refusing(int)),
    "numbers that are not told": row(lambda key, value: xml(key, value if isinstance(value, str) else "number")),
    "values without an end": row(lambda key, value: f"{key}={value}", "\n"),
    "a word for no arguments": lambda arguments: row(xml)(arguments) or "<none>",
    "a wrapper of some arguments": lambda arguments: f"<args>{row(xml)(arguments)}</args>" if arguments else "",
}


@pytest.mark.parametrize("name", NOT_DESCRIBED)
def test_arguments_that_are_no_row_are_a_format_that_cannot_be_described(name):
    assert learnt(chat(each(call_of(NOT_DESCRIBED[name])))) is None


def test_null_may_be_what_a_template_cannot_write():
    form = learnt(chat(each(call_of(row(refusing(type(None)))))))

    assert form is not None
    assert form.arguments == ArgumentRow("<arg=", ">", "", "</arg>", "<arg=", "")


def test_calls_without_names_are_a_format_that_cannot_be_described():
    nameless = chat(each(lambda _, call: f"<call>{json.dumps(call['arguments'])}</call>"))

    def render(messages: list[dict[str, Any]], tools: Any = (), **arguments: Any) -> str:
        return json.dumps(tools) + nameless(messages, **arguments)

    assert learnt(render) is None


def test_what_stands_before_a_name_in_every_turn_begins_a_call_unless_the_prompt_has_it():
    by_name = each(lambda _, call: f"{call['name']}\n{json.dumps(call['arguments'])}")
    in_turns, in_prompt = chat(by_name, opening="<turn>"), chat(by_name, opening="<turn>")

    def render(messages: list[dict[str, Any]], **arguments: Any) -> str:
        return in_turns(messages, **arguments).removesuffix("<turn>")

    starts = [form.start for rendering in (render, in_prompt) if (form := learnt(rendering))]

    assert starts == ["<turn>", ""]


def test_what_follows_several_calls_alone_may_be_missing():
    form = learnt(chat(lambda calls: each(tagged)(calls) + "<done>" * (len(calls) - 1)))

    assert form is not None
    assert (form.end, form.trailer) == ("}</call>", "<done>")


def test_ids_are_short_where_a_template_wants_them_so():
    def short(_: int, call: Call) -> str:
        if len(call["id"]) != 9:
            raise Refused("nine characters")
        return f"<call>{call['name']}|{call['id']}|{json.dumps(call['arguments'])}</call>"

    form = learnt(chat(each(short)))

    assert form is not None
    assert (form.short_ids, form.fields) == (True, (NAME, ID, ARGUMENTS))


def test_a_template_that_shows_no_calls_teaches_nothing():
    assert learn_calls(Probe(chat(each(lambda *_: "")), seconds=9), BARE, [END]) is None


def test_a_template_that_refuses_texts_teaches_nothing():
    def render(messages: list[dict[str, Any]], **arguments: Any) -> str:
        if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
            raise Refused("no texts")
        return chat(each(tagged))(messages, **arguments)

    assert learnt(render) is None


def test_thoughts_before_a_call_are_no_part_of_it():
    thoughtful = each(tagged, start="<think>\n</think>")

    form = learnt(chat(thoughtful), AnswerFormat(thought_tags=("<think>", "</think>")))

    assert form is not None
    assert form.start == '<call>{"name": "'


def test_a_text_before_what_ends_thoughts_keeps_it_in_the_call():
    form = learnt(chat(each(tagged, start="calls:</think>")), AnswerFormat(thought_tags=("<think>", "</think>")))

    assert form is not None
    assert form.start == 'calls:</think><call>{"name": "'


def test_what_closes_a_text_before_a_call_is_no_part_of_the_call():
    closed = each(tagged, start="</text>\n")

    form = learnt(chat(closed), AnswerFormat(text_opening="<text>", text_closing="</text>"))

    assert form is not None
    assert (form.lead_ins, form.start) == (("</text>\n",), '<call>{"name": "')


# Bounds.


def test_a_probe_renders_no_more_when_its_time_is_used():
    n_rendered = []
    probe = Probe(lambda *_, **__: "x" * (len(n_rendered.append(1) or n_rendered)), seconds=0)

    assert [probe.render([USER]) for _ in range(3)] == ["x", "", ""]
    assert len(n_rendered) == 1


def test_a_template_that_computes_for_long_is_probed_for_half_a_second():
    n_rendered = 0

    def render(messages: list[dict[str, Any]], **arguments: Any) -> str:
        nonlocal n_rendered
        n_rendered += 1
        began = thread_seconds()
        while thread_seconds() - began < 0.2:
            pass
        return chat(each(tagged))(messages, **arguments)

    traits = find_traits("", render)

    assert (n_rendered, traits.call_format) == (3, HERMES)


def test_the_log_tells_why_nothing_is_learnt_from_a_template(caplog):
    def render(messages: list[dict[str, Any]], **arguments: Any) -> str:
        if any("tool_calls" in message for message in messages):
            raise ZeroDivisionError("of the template")
        return chat(each(tagged))(messages, **arguments)

    with caplog.at_level(logging.WARNING, "corosrv.engine"):
        traits = find_traits("", render)

    assert (traits.call_format, traits.shows_calls, traits.has_system) == (HERMES, False, True)
    (line,) = caplog.messages
    assert "cannot be learnt" in line
    assert "ZeroDivisionError('of the template')" in line


# Thoughts.


def thinker(
    write: Callable[[str, str], str], member: str = "reasoning_content", prompt: str = "<assistant>"
) -> Rendering:
    """Makes the rendering of a template that writes thoughts and text so."""

    def render(messages: list[dict[str, Any]], add_generation_prompt: bool = False, **_: Any) -> str:
        text = ""
        for message in messages:
            content = message.get("content") or ""
            if message["role"] == "assistant":
                content = write(message.get(member, ""), content)
            text += f"<{message['role']}>{content}{END}"
        return text + (prompt if add_generation_prompt else "")

    return render


THINKERS = {
    "tags": (
        thinker(lambda thought, text: f"<think>{thought}</think>{text}"),
        AnswerFormat(("<think>", "</think>")),
    ),
    "another member": (
        thinker(lambda thought, text: f"<think>{thought}</think>{text}", "thinking"),
        AnswerFormat(("<think>", "</think>"), thought_member="thinking"),
    ),
    "a prompt that ends in thoughts": (
        thinker(lambda thought, text: f"<think>{thought}</think>{text}", prompt="<assistant><think>\n"),
        AnswerFormat(("<think>", "</think>"), opens_thoughts=True),
    ),
    "tags around the text": (
        thinker(lambda thought, text: f"<think>{thought}</think><text>{text}</text>"),
        AnswerFormat(("<think>", "</think>"), text_opening="<text>", text_closing="</text>"),
    ),
    "a prompt that says there are none": (
        thinker(lambda thought, text: f"<think>{thought}</think>{text}", prompt="<assistant><think></think>"),
        AnswerFormat(("<think>", "</think>")),
    ),
    "an opening that the prompt alone has": (
        thinker(lambda thought, text: f"{thought}</think>{text}", prompt="<assistant><think>"),
        AnswerFormat(("<think>", "</think>"), opens_thoughts=True),
    ),
    "words": (
        thinker(lambda thought, text: f"So I think: {thought}</done>{text}"),
        AnswerFormat(("So I think:", "</done>"), thought_space=" "),
    ),
    "two tags each, and another header": (
        thinker(lambda thought, text: f"<a><sep>{thought}</a><sep>{text}", prompt="<bot>"),
        AnswerFormat(("<a><sep>", "</a><sep>")),
    ),
    "a tag, and another header that is longer": (
        thinker(lambda thought, text: f"<think>{thought}</think>{text}", prompt="<another one that has many words>"),
        AnswerFormat(("<think>", "</think>")),
    ),
    "a tag that tells behind one that does not": (
        thinker(lambda thought, text: f"<a><thought>{thought}</thought>{text}", prompt="<bot>"),
        AnswerFormat(("<thought>", "</thought>")),
    ),
    "words behind thoughts": (
        thinker(lambda thought, text: f"<a>{thought} it is</a>{text}" if thought else text),
        BARE,
    ),
    "none": (thinker(lambda _, text: text), BARE),
}


@pytest.mark.parametrize("name", THINKERS)
def test_what_stands_around_thoughts_and_text_is_learnt(name):
    rendering, answer = THINKERS[name]

    assert learn_answer("", Probe(rendering, seconds=9), [END]) == answer


def test_known_tags_that_a_template_speaks_of_are_those_of_its_model():
    silent = thinker(lambda _, text: text)

    answer = learn_answer("{% if '[/THINK]' in content %}", Probe(silent, seconds=9), [END])

    assert answer.thought_tags == ("[THINK]", "[/THINK]")


# Descriptions.


def test_names_are_the_markers_of_a_format_that_has_none():
    bare = CallFormat(start="", inner=("\n",), joint="<next>", end="")
    row_of = CallFormat(start="!", inner=("(",), joint=", ", end=")", arguments=ArgumentRow("", "=", "", "", ", ", ""))

    assert markers_for(bare, ["rain"]) == ("<next>rain\n{", "rain\n{")
    assert markers_for(row_of, ["rain", "sun"]) == ("!rain(", "!sun(")
    assert markers_for(HERMES, ["rain"]) == ("<tool_call>",)


def test_a_channel_stands_before_the_name_or_behind_it():
    harmony = CallFormat(start="to=functions.", inner=("<|channel|>commentary json<|message|>",), joint="", end="")
    other = CallFormat(start="to=", inner=("<|channel|>",), joint="", end="")

    headers = completed(harmony).headers
    assert headers[0] == ("to=functions.", "<|channel|>commentary json<|message|>")
    assert ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>") in headers
    assert {"".join(header).count("<|channel|>") for header in headers} == {1}
    assert set(completed(harmony).markers) == {start for start, _ in headers}
    assert completed(other) is other


# Writing.

WRITTEN: dict[str, tuple[CallFormat, Any, str]] = {
    "JSON": (
        HERMES,
        {"a": "ä", "b": True},
        '<tool_call>\n{"name": "rain", "arguments": {"a": "ä", "b": true}}\n</tool_call>',
    ),
    "what was cut off": (HERMES, '{"a', '<tool_call>\n{"name": "rain", "arguments": {"a}\n</tool_call>'),
    "an id and a number": (
        CallFormat("<", ">", "", (INDEX, NAME, ID, ARGUMENTS), (".", ":", "="), first_index=1),
        {},
        "<1.rain:call00001={}>",
    ),
    "a row": (
        CallFormat("<", ">", "", arguments=ArgumentRow("(", "=", "", ";", "(", ")")),
        {"b": "x", "a": [1, "ä"]},
        '<rain(b=x;(a=[1, "ä"];)>',
    ),
    "no arguments in a row": (
        CallFormat("<", ">", "", arguments=ArgumentRow("(", "=", "", ";", "(", ")")),
        {},
        "<rain>",
    ),
    "a sorted row of Python's values": (
        CallFormat(
            "<",
            ">",
            "",
            arguments=ArgumentRow("(", "=", "", "", ", ", ")", quote="'", constants=Spelling.PYTHON, sorts_keys=True),
        ),
        {"c": "x", "a": True, "b": None, "d": 1},
        "<rain(a=True, b=None, c='x', d=1)>",
    ),
    "words of types": (
        CallFormat(
            "<",
            ">",
            "",
            arguments=ArgumentRow(
                "(",
                ":",
                "=",
                ";",
                "(",
                "",
                (("string", "s"), ("boolean", "b"), ("null", "n"), ("number", "i"), ("object", "o"), ("array", "l")),
            ),
        ),
        {"a": "x", "b": True, "c": None, "d": 1, "e": {}, "f": []},
        "<rain(a:s=x;(b:b=true;(c:n=null;(d:i=1;(e:o={};(f:l=[];>",
    ),
    "a notation": (
        CallFormat("<", ">", "", arguments=Notation("|")),
        {"b": "x", "a": [1, {"c": "y"}]},
        "<rain{b:|x|,a:[1,{c:|y|}]}>",
    ),
    "a sorted notation": (
        CallFormat("<", ">", "", arguments=Notation("|", sorts_keys=True)),
        {"b": True, "a": None},
        "<rain{a:null,b:true}>",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_written_in_its_format(name):
    form, arguments, text = WRITTEN[name]

    assert write_calls(form, [WrittenCall("rain", arguments)]) == text


def test_the_texts_of_a_format_are_all_those_around_names_and_values():
    row_of = ArgumentRow("O", "K", "V", "E", "B", "C")
    form = CallFormat(
        "S", "N", "J", inner=("I",), trailer="T", variants=(("R", "Q"),), lead_ins=("L",), arguments=row_of
    )
    answer = AnswerFormat(("A", "Z"), turn="U", text_opening="X", text_closing="Y")

    assert set(form.texts.split()) == set("SNJITRQLOKVEBC")
    assert "Q" in CallFormat("", "", "", arguments=Notation("Q")).texts
    assert set(answer.texts.split()) == set("AZUXY")
    assert answer.edges == ("UX", "U", "X", "Y")


def test_calls_that_follow_each_other_as_if_alone_repeat():
    form = CallFormat("<c>", "</c>", "</c>\n<c>")

    assert [form.repeats, CallFormat("<c>", "</c>", ", ").repeats, CallFormat("", "", "").repeats] == [
        True,
        False,
        False,
    ]


# Cutting.


@pytest.mark.parametrize(
    ("texts", "start"),
    [
        (("ab", "ac"), "a"),
        (("x<tag>1", "x<tab>2"), "x"),
        (("x<tag>1", "x<tag>2"), "x<tag>"),
        (("a [tool] b", "a [to] b"), "a "),
        (("a < b", "a < c"), "a < "),
        (("a <" + "b" * 99 + ">", "a <" + "b" * 99 + ">c"), "a <" + "b" * 99 + ">"),
        (("a <" + "b" * 80 + "c>", "a <" + "b" * 80 + "d>"), "a <" + "b" * 80),
    ],
)
def test_texts_share_a_beginning_that_ends_in_no_tag(texts, start):
    assert shared_start(*texts) == start


@pytest.mark.parametrize(
    ("texts", "end"),
    [(("ab", "cb"), "b"), (("<tag>x", "<flag>x"), "x"), (("1<tag>x", "2<tag>x"), "<tag>x"), (("a>", "b>"), "")],
)
def test_texts_share_an_end_that_begins_in_no_tag(texts, end):
    assert shared_end(*texts) == end


def test_a_first_text_that_speaks_of_no_call_is_no_marker():
    form = learnt(chat(each(lambda _, call: f"<b>{call['name']}={json.dumps(call['arguments'])}</b>")))

    assert form is not None
    assert (form.start, form.markers) == ("<b>", ())


def test_a_template_that_answers_to_being_told_not_to_think_tells_so():
    def render(messages: list[dict[str, Any]], enable_thinking: bool = True, **arguments: Any) -> str:
        rendered = THINKERS["tags"][0](messages, **arguments)
        return rendered + ("" if enable_thinking else "<think></think>")

    answer = learn_answer("", Probe(render, seconds=9), [END])

    assert (answer.tells_no_thoughts, answer.thought_tags) == (True, ("<think>", "</think>"))


def test_thoughts_that_a_template_shows_before_calls_alone_are_learnt():
    def render(messages: list[dict[str, Any]], **arguments: Any) -> str:
        shown = [m if "tool_calls" in m else {**m, "reasoning_content": ""} for m in messages]
        text = thinker(lambda thought, text: f"<think>{thought}</think>{text}" if thought else text)(shown, **arguments)
        return text

    assert learn_answer("", Probe(render, seconds=9), [END]).thought_tags == ("<think>", "</think>")
