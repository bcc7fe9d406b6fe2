"""Calls in models' own formats become names and JSON, however the answer is cut on its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corosrv.contracts.jobs import Finish, Job, Messages, ModelCard
from corosrv.dialects.chat.choice import Syntax
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, tool
from corosrv.dialects.chat.prepare import prepare
from corosrv.formats.callformats.description import (
    AnswerFormat,
    ArgumentRow,
    CallField,
    CallFormat,
    Notation,
    Spelling,
    markers_for,
    with_markers,
)
from tests.dialects.chat.test_parser import chunks, parse, told

NAME, ID, INDEX, ARGUMENTS = CallField
TOOLS = ("rain", "sun")
STRINGS = frozenset((("rain", "at"), ("rain", "note")))


def syntax(form: CallFormat, **chosen: object) -> Syntax:
    return Syntax(tool_format=form, markers=markers_for(form, TOOLS), string_members=STRINGS, **chosen)  # type: ignore[arg-type]


def repeated(start: str, end: str, inner: str, arguments: ArgumentRow | Notation | None) -> CallFormat:
    return with_markers(CallFormat(start, end, f"{end}\n{start}", inner=(inner,), arguments=arguments))


XML = syntax(repeated("<call=", "</call>", ">\n", ArgumentRow("<arg=", ">\n", "", "\n</arg>", "\n<arg=", "\n")))
TYPED = syntax(
    repeated(
        "<call=", "</call>", ">",
        ArgumentRow('<arg name="', '" type="', '">', "</arg>", '<arg name="', "", (("string", "s"), ("number", "n"))),
    )
)  # fmt: skip
PYTHON = syntax(
    with_markers(
        CallFormat(
            "<calls>[", ")]", "), ", inner=("(",),
            arguments=ArgumentRow("", "=", "", "", ", ", "", quote='"', constants=Spelling.PYTHON),
        )
    )
)  # fmt: skip
NOTATION = syntax(repeated("<call=", "</call>", "", Notation('<|"|>')))
NUMBERED = syntax(
    with_markers(
        CallFormat("<call>", "</call>", "</call><call>", (NAME, INDEX, ARGUMENTS), (":", ">"), trailer="</calls>")
    )
)
WITH_ID = syntax(with_markers(CallFormat("<call>", "</call>", "</call><call>", (NAME, ARGUMENTS, ID), (" ", "|"))))
BARE = syntax(CallFormat("", "", "<next>", inner=("\n",)))
LED = syntax(
    replace(WITH_ID.tool_format or CallFormat("", "", ""), lead_ins=("</text>\n",)), edges=("<text>", "</text>")
)

RAIN, SUN = ("rain", '{"at": "Ulm"}'), ("sun", "{}")
CASES: dict[str, tuple[Syntax, str, str, list[tuple[str, str]]]] = {
    "a row": (XML, "<call=rain>\n<arg=at>\nUlm\n</arg>\n</call>", "", [RAIN]),
    "an empty row": (XML, "<call=sun>\n</call>", "", [SUN]),
    "text around rows": (
        XML, "So: <call=sun>\n</call>\n<call=rain>\n<arg=at>\nUlm\n</arg>\n</call> Done.", "So:Done.", [SUN, RAIN]
    ),
    "strings are as they come": (
        XML, '<call=rain>\n<arg=at>\n 1 "<b>"\n\\n \n</arg>\n</call>', "", [("rain", '{"at": " 1 \\"<b>\\"\\n\\\\n "}')]
    ),
    "markup around strings": (
        XML, "<call=rain>\n<arg=at>\n<![CDATA[a </arg> b]]>\n</arg>\n</call>", "", [("rain", '{"at": "a </arg> b"}')]
    ),
    "other values are JSON": (
        XML, '<call=rain>\n<arg=n>\n 12 \n</arg>\n<arg=o>\n{"a": [true, null]}\n</arg>\n</call>', "",
        [("rain", '{"n": 12, "o": {"a": [true, null]}}')],
    ),
    "values as Python writes them are JSON": (
        XML, "<call=rain>\n<arg=b>\nTrue\n</arg>\n<arg=o>\n{'a': None}\n</arg>\n</call>", "",
        [("rain", '{"b": true, "o": {"a": null}}')],
    ),
    "values that are neither are strings": (
        XML, "<call=rain>\n<arg=x>\nnan, I think\n</arg>\n</call>", "", [("rain", '{"x": "nan, I think"}')]
    ),
    "words of types tell strings": (
        TYPED, '<call=rain><arg name="x" type="s">12</arg><arg name="at" type="n">12</arg></call>', "",
        [("rain", '{"x": "12", "at": 12}')],
    ),
    "rows of Python": (
        PYTHON, '<calls>[rain(at="Ulm"), sun()]', "", [RAIN, SUN]
    ),
    "quotes in strings of Python": (
        PYTHON, '<calls>[rain(at="a \\"b\\" \\n c", x="d "e" f")]', "",
        [("rain", '{"at": "a \\"b\\" \\n c", "x": "d \\"e\\" f"}')],
    ),
    "values of Python in brackets": (
        PYTHON, '<calls>[rain(x=[1, (2, 3)], y={"a": "],)"}, z=None)]', "",
        [("rain", '{"x": [1, [2, 3]], "y": {"a": "],)"}, "z": null}')],
    ),
    "a notation": (
        NOTATION, '<call=rain{at:<|"|>a "b" {,}<|"|>,n:[1,true,{x:null}]}</call>', "",
        [("rain", '{"at":"a \\"b\\" {,}","n":[1,true,{"x":null}]}')],
    ),
    "calls in a notation": (NOTATION, '<call=sun{}</call>\n<call=rain{at:<|"|>Ulm<|"|>}</call>', "",
                            [SUN, ("rain", '{"at":"Ulm"}')]),
    "numbers": (
        NUMBERED, '<call>sun:0>{}</call><call>rain:1>{"at": "Ulm"}</call></calls>', "", [SUN, RAIN]
    ),
    "ids": (WITH_ID, '<call>sun {}|call_1</call>', "", [SUN]),
    "names alone": (BARE, 'sun\n{}\n<next>rain\n{"at": "Ulm"}', "", [SUN, RAIN]),
    "what closes a text is no part of it": (LED, "<text>Well.</text>\n<call>sun {}|call_1</call>", "Well.", [SUN]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_read_from_its_format_wherever_it_is_cut(case):
    read, answer, text, calls = CASES[case]
    expected = ("", text, calls, "tool_calls")

    assert parse(read, answer) == expected
    assert parse(read, *answer) == expected
    for at in range(len(answer)):
        assert parse(read, answer[:at], answer[at:]) == expected


CUT = {
    "in a string": (XML, "<call=rain>\n<arg=at>\nUl", '{"at": "Ul'),
    "in a value": (XML, "<call=rain>\n<arg=n>\n12", '{"n": '),
    "in a key": (XML, "<call=rain>\n<arg=a", ""),
    "in a second key": (XML, "<call=rain>\n<arg=at>\nUlm\n</arg>\n<arg=a", '{"at": "Ulm"'),
    "in a string of Python": (PYTHON, '<calls>[rain(at="Ul', '{"at": "Ul'),
    "in a notation": (NOTATION, '<call=rain{at:<|"|>Ul', '{"at":"Ul'),
}


@pytest.mark.parametrize("case", CUT)
def test_a_call_that_is_cut_off_has_the_arguments_that_came(case):
    read, answer, arguments = CUT[case]

    for pieces in ((answer,), tuple(answer)):
        assert parse(read, *pieces, finish=Finish.LENGTH) == ("", "", [("rain", arguments)], "length")


def test_what_only_looks_like_a_call_is_text():
    for read, answer in ((XML, "a <call=no call"), (BARE, "rain is wet"), (NUMBERED, "<cal")):
        assert parse(read, *answer) == parse(read, answer) == ("", answer, [], "stop")


def test_edges_are_no_part_of_a_text():
    edges = AnswerFormat(turn="<turn>", text_opening="<text>", text_closing="</text>").edges
    thoughtful = Syntax(("<think>", "</think>"), edges=edges)

    for answer in ("<think>Hm.</think><turn><text>Yes.</text>", "<think>Hm.</think><text>Yes.</text>"):
        assert parse(thoughtful, *answer) == parse(thoughtful, answer) == ("Hm.", "Yes.", [], "stop")


def asked(card: ModelCard, **chosen: object) -> Conversation:
    tools = tuple(tool(name, None, None) for name in TOOLS)
    return Conversation(Job((Messages(({"role": "user", "content": "Rain?"},), tools),)), **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "triggers"),
    [
        (XML, ("<call=",)),
        (NUMBERED, ("<call>",)),
        (BARE, ("<next>rain\n{", "rain\n{", "<next>sun\n{", "sun\n{")),
    ],
)
def test_a_grammar_begins_with_what_a_call_begins_with(read, triggers):
    card = ModelCard("m", created=1, capabilities=frozenset(("completion", "chat", "tools")))
    card = replace(card, call_format=read.tool_format)

    free, _ = prepare(asked(card), card)
    forced, _ = prepare(asked(card, tool_choice=CallPolicy(CallMode.REQUIRED)), card)

    assert (free.sampling.grammar_triggers, forced.sampling.grammar_triggers) == (triggers, ())


def test_edges_are_dropped_from_the_text_of_a_model_that_is_told_not_to_think():
    answer = AnswerFormat(("<think>", "</think>"), text_opening="<text>", text_closing="</text>")
    card = ModelCard(
        "m", created=1, capabilities=frozenset(("completion", "chat")), answer_format=answer, reasons=False
    )
    silent = Conversation(Job((Messages(({"role": "user", "content": "Rain?"},)),)))

    _, parser = prepare(silent, card)

    assert told(parser.parts(chunks("<text>Yes.</text>"))) == ("", "Yes.", [], "stop")
