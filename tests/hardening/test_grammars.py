"""Grammars, schemas and patterns that were made to hang, to crash or to be ignored: refused at once, by name."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.serve.wire import Answer, Connection, chat

pytestmark = pytest.mark.model

# The promise is 50 ms of work; the rest is for a slow machine on which other tests run too. What was not refused at
# once took tens of seconds, and what holds the hub fails a test besides.
AT_ONCE = 5.0  # seconds


def schema(value: Any) -> dict[str, Any]:
    """The field that asks for an answer of this schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def string(**limits: Any) -> dict[str, Any]:
    """A schema of one member, with these limits; at the top they would meet other rules first."""
    return {"type": "object", "properties": {"a": {"type": "string", **limits}}, "required": ["a"]}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


def refused(connection: Connection, fields: dict[str, Any], code: str) -> Answer:
    """The answer, which is a 400 of this code and came at once."""
    began = time.monotonic()
    answer = connection.post(chat(max_tokens=8, **fields))
    took = time.monotonic() - began

    assert answer.status == 400, answer.body[:500]
    assert answer.error["code"] == code, answer.error
    assert str(answer.error["param"]).startswith(next(iter(fields)))
    assert took < AT_ONCE, f"{took:.2f} s"
    return answer


INVALID = ['root ::= "a', "root ::= b", "", "root :=", 'a ::= "x"', "root ::= (", "\0", "root ::= [z-a]", "(" * 100]


@pytest.mark.parametrize("grammar", [text for text in INVALID if text], ids=repr)
def test_h043_a_grammar_that_is_none_is_refused_and_never_ignored(connection, grammar):
    refused(connection, {"grammar": grammar}, "invalid_grammar")


@pytest.mark.parametrize(
    "value",
    [
        {"type": "strin"},
        {"type": 5},
        {"type": []},
        {"enum": []},
        {"enum": 5},
        {"properties": []},
        {"required": "a"},
        {"items": 5},
        {"anyOf": []},
        {"minLength": -1},
        {"minItems": 1.5},
        {"not": {"type": "string"}},
        {"if": {}, "then": {"type": "string"}},
        string(pattern="("),
        string(pattern="[z-a]"),
        string(pattern="(?=a)"),
        string(pattern=r"(a)\1"),
        string(pattern=5),
        False,
    ],
    ids=repr,
)
def test_h043_a_schema_that_cannot_be_kept_is_refused_and_never_ignored(connection, value):
    refused(connection, schema(value), "invalid_schema")


@pytest.mark.parametrize("grammar", ['root ::= "a"{3,1}', 'root ::= [a-z]{9,2} "x"'])
def test_h044_a_least_above_a_most_in_a_grammar(connection, grammar):
    refused(connection, {"grammar": grammar}, "invalid_grammar")


@pytest.mark.parametrize(
    "value",
    [
        {"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 2},
        string(minLength=9, maxLength=3),
        string(pattern="^a{2,1}$"),
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"type": "object", "minProperties": 5, "maxProperties": 2},
    ],
    ids=repr,
)
def test_h044_a_least_above_a_most_in_a_schema(connection, value):
    refused(connection, schema(value), "invalid_schema")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"{1000000}',
        'root ::= (("a"{1000}){1000}){1000}',
        'root ::= root "a"',
        'root ::= a\na ::= b "x"\nb ::= a "y"',
    ],
    ids=repr,
)
def test_h044_repetition_without_end_and_left_recursion(connection, grammar):
    refused(connection, {"grammar": grammar}, "invalid_grammar")


def test_h044_repetition_without_end_in_a_schema(connection):
    """More items than could ever be written: legal, cut by the limit of tokens, and nobody else's trouble."""
    value: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        value = {"type": "array", "items": value, "minItems": 1000, "maxItems": 1000}

    answer = connection.post(chat(max_tokens=8, **schema(value)))

    assert answer.status == 200
    assert answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("depth", [200, 20_000])
def test_h045_groups_in_groups(connection, depth):
    refused(connection, {"grammar": "root ::= " + "(" * depth + '"a"' + ")" * depth}, "invalid_grammar")


def test_h045_schemas_in_schemas(connection):
    refused(connection, schema(nested(100)), "invalid_schema")


@pytest.mark.parametrize("depth", [200, 20_000])
def test_h045_groups_in_a_pattern(connection, depth):
    refused(connection, schema(string(pattern="(" * depth + "a" + ")" * depth)), "invalid_schema")


@pytest.mark.parametrize(
    "grammar",
    ["root ::= " + " | ".join(f'"{i:06}"' for i in range(20_000)), "\n".join(f'r{i} ::= "a"' for i in range(5_000))],
    ids=["64 KiB", "rules"],
)
def test_h046_a_large_grammar(connection, grammar):
    refused(connection, {"grammar": grammar + "\nroot ::= r1" if "root" not in grammar else grammar}, "invalid_grammar")


@pytest.mark.parametrize(
    "value",
    [
        {"enum": [f"value {i}" for i in range(20_000)]},
        {"type": "object", "properties": {f"key {i}": {"enum": [str(j) for j in range(20)]} for i in range(3_000)}},
        {"anyOf": [{"const": i} for i in range(20_000)]},
    ],
    ids=["enum", "properties", "anyOf"],
)
def test_h046_a_large_schema(connection, value):
    refused(connection, schema(value), "invalid_schema")


@pytest.mark.parametrize("length", [1000, 250])
def test_h046_long_triggers_of_a_structural_tag(connection, length):
    """48 kB of them took 40 s of the hub, and 1.6 GB."""
    triggers = [f"{i}" + "abcdefghij" * (length // 10) for i in range(24)]
    structures = [{"begin": trigger, "schema": {"type": "integer"}, "end": "."} for trigger in triggers]
    tag = {"type": "structural_tag", "structures": structures, "triggers": triggers}

    answer = refused(connection, {"response_format": tag}, "invalid_value")

    assert "tags together are too large" in answer.error["message"] or "characters together" in answer.error["message"]


@pytest.mark.parametrize("pattern", ["a?" * 3000, "(a*)*" * 500, "(((a{1,100}){1,100}){1,100})"], ids=lambda p: p[:12])
def test_h047_a_pattern_that_explodes_is_refused_or_followed_in_time(connection, pattern):
    began = time.monotonic()
    answer = connection.post(chat(max_tokens=8, **schema(string(pattern=pattern))))

    assert answer.status in (200, 400), answer.body
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("stream", [False, True])
def test_h048_a_dead_end_ends_its_own_request(connection, stream):
    """The bias bans every token that the grammar would go on with."""
    fields = {"grammar": 'root ::= "Q" "Q" "Q"', "logit_bias": [["Q", False], ["QQ", False], ["QQQ", False]]}
    answer = connection.post(chat(max_tokens=8, stream=stream, **fields))

    assert answer.error["code"] == "grammar_dead_end"
    assert answer.error["type"] == "invalid_request_error"
    assert answer.status == 400  # whoever asks the same again gets the same
    assert connection.post(chat(max_tokens=1)).status == 200


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "#/$defs/none", "#/properties/a", "other.json", "", 5],
    ids=repr,
)
def test_h049_a_reference_that_leads_nowhere(connection, target):
    value = {"type": "object", "properties": {"a": {"$ref": target}}, "required": ["a"]}
    refused(connection, schema(value), "invalid_schema")


@pytest.mark.parametrize(
    "value",
    [
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]},
                   "b": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}},
         "$ref": "#/$defs/a"},
    ],
    ids=["each other", "a member", "an item", "in turns"],
)  # fmt: skip
def test_h049_a_reference_that_never_comes_to_an_end(connection, value):
    refused(connection, schema(value), "invalid_schema")


def test_h050_a_grammar_that_was_refused_is_refused_again_and_harms_no_other(connection):
    for _ in range(20):
        refused(connection, {"grammar": 'root ::= "a"{1000000}'}, "invalid_grammar")

    answer = connection.post(chat(max_tokens=8, grammar='root ::= "yes"'))
    assert answer.json["choices"][0]["message"]["content"] == "yes"
