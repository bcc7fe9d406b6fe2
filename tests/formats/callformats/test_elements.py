"""Calls of MiniMax-M3, whose arguments are elements in elements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.contracts.jobs import Job, Messages, ModelCard
from corosrv.dialects.chat.choice import Syntax
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation
from corosrv.dialects.chat.member_reader import ElementReader
from corosrv.dialects.chat.prepare import prepare
from corosrv.dialects.chat.tool_schema import alternatives, element_types
from corosrv.formats.callformats.description import MINIMAX3, ElementTree
from corosrv.formats.callformats.writer import WrittenCall, write_calls
from tests.formats.callformats.test_templates import read
from tests.support.oracle import shared_oracle

MARK = "]<]minimax[>["
TREE = ElementTree(MARK, "item")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "days": {"type": "integer"},
        "place": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "item": {"type": "integer"}},
            "required": ["id"],
        },
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
        "either": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "boolean"}]},
        "loose": {"type": ["string", "null"]},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["days"],
    "$defs": {"tag": {"type": "string"}},
}
TYPES = element_types(SCHEMA, "item")
ARGUMENTS: list[dict[str, Any]] = [
    {"days": 1},
    {"text": 'a "b" <c>\n 1 ', "days": -2, "place": {"id": "007", "item": 3}, "tags": ["1", "true", ""]},
    {"days": 0, "place": {"id": ""}, "tags": [], "either": [1.5, 2], "loose": "null", "kind": "b"},
    {"days": 0, "either": True},
]


def called(arguments: dict[str, Any]) -> str:
    return write_calls(MINIMAX3, [WrittenCall("rain", arguments)])


def tagged(name: str, text: str) -> str:
    return f"{MARK}<{name}>{text}{MARK}</{name}>"


def forced() -> str:
    tool = {"type": "function", "function": {"name": "rain", "parameters": SCHEMA}}
    card = ModelCard(
        "m", created=1, capabilities=frozenset(("completion", "chat", "tools")), call_format=MINIMAX3
    )  # fmt: skip
    prompt = Messages(({"role": "user", "content": "Hi"},), (tool,))
    job, _ = prepare(Conversation(Job((prompt,)), CallPolicy(CallMode.REQUIRED)), card)
    return job.sampling.grammar


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments_come_back_as_their_schema_has_them_wherever_they_are_cut(arguments):
    syntax = Syntax(tool_format=MINIMAX3, markers=MINIMAX3.markers, element_types={"rain": TYPES})
    text = called(arguments)

    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        assert read(syntax, pieces) == ("", "", [("rain", arguments)])


@pytest.mark.timeout(300)  # the first of them builds the native recogniser
def test_a_required_call_lets_the_model_write_such_elements():
    texts = [called(arguments) for arguments in ARGUMENTS]

    assert shared_oracle().verdicts(forced(), texts) == "y" * len(texts)


@pytest.mark.timeout(300)
def test_a_required_call_refuses_what_its_schema_does_not_allow():
    refused: list[dict[str, Any]] = [
        {}, {"days": "x"}, {"days": 1, "text": "late"}, {"days": 1, "other": 1}, {"days": 1, "tags": ["a"] * 4},
        {"days": 1, "place": {"item": 1}}, {"days": 1, "kind": "c"}, {"days": 1, "either": ["a"]},
    ]  # fmt: skip

    assert "y" not in shared_oracle().verdicts(forced(), list(map(called, refused)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (tagged("a", " 1 ") + tagged("b", "one two"), {"a": 1, "b": "one two"}),
        (tagged("a", tagged("item", "1") + "\n" + tagged("item", "x")), {"a": [1, "x"]}),
        (tagged("a", tagged("a", "True")) + "\n" + tagged("b", ""), {"a": {"a": True}, "b": ""}),
        (tagged("a", '{"x": [1]}'), {"a": {"x": [1]}}),
        ("", {}),
    ],
)
def test_values_without_a_schema_are_what_they_look_like(text, value):
    for step in (1, len(text) + 99):
        reader, held, told = ElementReader(TREE, {}), "", ""
        whole = f"{text}{MARK}</invoke>\n"
        for at in range(0, len(whole), step):
            held += whole[at : at + step]
            size, piece = reader.feed(held, False)
            held, told = held[size:], told + piece

        assert (json.loads(told), reader.is_whole) == (value, True)
        assert held == f"{MARK}</invoke>\n"


def test_a_string_comes_as_it_is_written_and_a_cut_one_stays_open():
    reader = ElementReader(TREE, TYPES)

    assert reader.feed(f"{MARK}<text>It ", False)[1] == '{"text": "It '
    assert reader.feed(f"rains{MARK[:5]}", False) == (5, "rains")
    assert reader.feed(f"{MARK[:5]}!", True)[1] == f"{MARK[:5]}!"
    assert not reader.is_whole


def test_types_are_known_at_any_depth_and_a_value_that_may_be_a_string_is_one():
    assert {
        "": "object", "text": "string", "days": "integer", "place": "object", "place/id": "string",
        "place/item": "integer", "tags": "array", "tags/item": "string", "either": TYPES["either"],
        "either/item": "number", "loose": "string", "kind": "string",
    } == TYPES  # fmt: skip
    assert TYPES["either"] in ("array", "boolean")


def test_references_that_lead_to_themselves_end():
    schema = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"a": {"$ref": "#/$defs/a"}}}

    assert alternatives({"$ref": "#/$defs/a"}, schema) == [{"$ref": "#/$defs/a"}]
    assert element_types(schema, "item") == {}


@pytest.mark.timeout(20)
def test_a_schema_that_branches_into_itself_is_not_followed_for_long():
    branching = {"properties": {str(number): {"$ref": "#"} for number in range(200)} | {"a": {"type": "string"}}}

    assert element_types(branching, "item")["a"] == "string"
