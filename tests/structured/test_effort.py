"""Schemas of a few kilobytes that ask for work without end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from corosrv import structured
from corosrv.callformats.known import HERMES
from corosrv.chat import answer_grammar
from corosrv.errors import InvalidSchema
from corosrv.processor import Turns
from corosrv.structured import Effort, SchemaLimits
from corosrv.structured.limits import DEFAULT_LIMITS
from corosrv.structured.schema.check import check

LIMITS = SchemaLimits(seconds=0.02)


def chain(link: Callable[[dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    """Sixty definitions, each of which is made of the next one; followed one by one they would never end."""
    links = {str(i): link({"$ref": f"#/$defs/{i + 1}"}) for i in range(60)}
    return {"$ref": "#/$defs/0", "title": "chain", "$defs": links | {"60": {"type": "object"}}}


LABORIOUS = {
    "references in allOf": chain(lambda following: {"allOf": [following] * 50}),
    "enums of a oneOf": {"oneOf": [{"enum": [1000 * i + j for j in range(250)]} for i in range(60)]},
    "a pattern through enums": {"type": "string", "pattern": "^(a|aa)*$", "enum": ["a" * i for i in range(1000)]},
    "a pattern through one long text": {"type": "string", "pattern": "^(a|aa)*$", "enum": ["a" * 900_000]},
    "a pattern through names": {
        "type": "object",
        "patternProperties": {"^(a|b)*a(a|b){12}$": {}},
        "properties": {"ab" * i: {} for i in range(400)},
    },
    "long patterns": {"anyOf": [{"pattern": f"[{'abcdefghi' * 200}]{{1,{i + 1}}}"} for i in range(400)]},
}


@pytest.mark.parametrize("schema", LABORIOUS.values(), ids=LABORIOUS)
def test_work_on_a_schema_ends_when_it_was_enough(schema: dict[str, Any]) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidSchema, match="takes more than 20 ms of processor time"):
        structured.grammar_of(schema, "schema", LIMITS)

    assert time.thread_time() - began < 0.5


def test_the_schemas_of_one_request_share_their_effort() -> None:
    effort = Effort(LIMITS)
    with pytest.raises(InvalidSchema):
        structured.fragment(LABORIOUS["references in allOf"], "first", "a", LIMITS, effort)

    with pytest.raises(InvalidSchema, match=r"second: .* processor time"):
        structured.fragment({"type": "string"}, "second", "b", LIMITS, effort)


def test_many_tools_take_no_longer_than_one() -> None:
    hard = {"type": "object", "properties": {"a": LABORIOUS["enums of a oneOf"]}}
    tools = [(i, {"function": {"name": f"f{i}", "parameters": hard | {"title": str(i)}}}) for i in range(128)]

    began = time.thread_time()
    with pytest.raises(InvalidSchema, match="processor time"):
        answer_grammar.call_rules(tools, HERMES, True, "tools[{}]", SchemaLimits())
    assert time.thread_time() - began < 2


def test_long_texts_of_a_schema_are_refused_by_their_size() -> None:
    for schema in ({"description": "x" * 1_000_001}, {"properties": {"x" * 1_000_001: True}}):
        with pytest.raises(InvalidSchema, match="more than 1000000 characters"):
            structured.grammar_of(schema, "schema")


def test_long_names_beside_others_are_told_apart_by_their_beginnings() -> None:
    names = {f"{letter}{'x' * 3000}": {"type": "null"} for letter in "abc"}
    grammar = structured.grammar_of({"type": "object", "properties": names, "additionalProperties": True}, "schema")

    assert len(grammar) < 20_000


def test_a_value_no_float_step_divides_is_compared_all_the_same() -> None:
    with pytest.raises(InvalidSchema, match="allow none of its values"):
        structured.grammar_of({"enum": [1e308], "multipleOf": 7e-5}, "schema")
    assert "1e+308" in structured.grammar_of({"enum": [1e308, 3], "multipleOf": 2}, "schema")


def test_others_run_while_a_schema_is_worked_on() -> None:
    limits = SchemaLimits(seconds=0.1)
    ticks: list[float] = []

    def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            gevent.sleep(0.001)

    ticking = gevent.spawn(tick)
    effort = Effort(limits, Turns().give_way)
    with gevent.Timeout(10), pytest.raises(InvalidSchema, match="takes more than 100 ms"):
        structured.grammar_of(LABORIOUS["references in allOf"], "schema", limits, effort)
    ticking.kill()

    assert len(ticks) > 5


def test_what_others_compute_meanwhile_is_no_effort() -> None:
    limits = SchemaLimits(seconds=0.05)

    def others() -> bool:
        began = time.thread_time()
        while time.thread_time() - began < 0.04:
            pass
        return True

    effort = Effort(limits, others)
    for _ in range(3):
        effort.check("schema")


def test_a_schema_that_is_as_large_as_it_may_be_gives_way_while_it_is_checked() -> None:
    n_looks = 0

    def look() -> bool:
        nonlocal n_looks
        n_looks += 1
        return False

    check({"prefixItems": [{} for _ in range(19_000)]}, "schema", DEFAULT_LIMITS, look)

    assert n_looks > 500
