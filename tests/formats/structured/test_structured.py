"""Schemas become grammars whose texts are valid values, all of them; or they are refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from corosrv.base.errors import InvalidSchema
from corosrv.formats import structured
from corosrv.formats.structured.limits import SchemaLimits
from tests.support.oracle import Oracle, oracle
from tests.support.processor_time import least_seconds
from tests.support.sentences import Sentences

N_TEXTS = 30


@pytest.fixture(scope="module")
def judge() -> Iterator[Oracle]:
    with oracle() as found:
        yield found


def validator(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def props(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
NODE = props("value", "next", value=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})

# A schema, instances that it has to allow, instances that it has to refuse.
SCHEMAS: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [None, 1.5, "x", {"a": [{}]}], []),
    ({}, [True, []], []),
    (STRING, ["", "caf\u00e9 \U0001f600", 'q"\\\n'], [1, None]),
    ({"type": ["integer", "null"]}, [0, -17, None], [1.5, "1"]),
    ({"type": "number"}, [0, -1.25, 1e-7], ["1"]),
    ({"type": "boolean"}, [True, False], [0]),
    ({"enum": ["\u00e9", None, 3, 1.5, {"a": [1]}, True]}, ["\u00e9", None, {"a": [1]}], ["e", False, {"a": [2]}]),
    ({"const": 'x"y\\\n\u4e2d'}, ['x"y\\\n\u4e2d'], ["x"]),
    ({"enum": [1, 2, "x", 2.5], "type": "integer"}, [1, 2], ["x", 2.5]),
    ({"enum": ["ab", "b", "abc"], "pattern": "^a", "maxLength": 2}, ["ab"], ["b", "abc"]),
    (props("b", a=INTEGER, b=STRING), [{"b": ""}, {"a": 1, "b": "x"}], [{"a": 1}, {"b": 1}, {"b": "", "c": 1}]),
    (props(a=INTEGER, b=STRING, c=STRING), [{}, {"a": 1}, {"c": ""}, {"a": 1, "c": ""}], [{"a": ""}]),
    (
        {**props("a", a=INTEGER, ab=STRING), "additionalProperties": {"type": "number"}},
        [{"a": 1}, {"a": 1, "abc": 2.5}, {"a": 1, "b": 2}],
        [{"a": 1, "x": "y"}, {"abc": 1}],
    ),
    ({**props(a=INTEGER), "additionalProperties": True}, [{"a": 1, "z": [1]}, {"aa": None}], [{"a": "1"}]),
    ({**props("q", a=INTEGER), "additionalProperties": STRING}, [{"q": "x"}, {"a": 1, "q": ""}], [{"q": 1}, {"a": 1}]),
    ({"type": "object"}, [{}, {"a": {"b": [1, "x"]}}], [[]]),
    (
        {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 3},
        [{"a": 1}, {"a": 1, "b": 2, "c": 3}],
        [{}, {"a": 1, "b": 2, "c": 3, "d": 4}],
    ),
    (
        {**props(**dict.fromkeys("abcd", INTEGER)), "minProperties": 2, "maxProperties": 3},
        [{"a": 1, "d": 2}, {"b": 1, "c": 2, "d": 3}],
        [{"a": 1}, dict.fromkeys("abcd", 1)],
    ),
    (
        {"type": "object", "patternProperties": {"^S_": STRING, "^I_": INTEGER}, "additionalProperties": False},
        [{}, {"S_a": "x", "I_b": 1}],
        [{"S_a": 1}, {"a": 1}],
    ),
    ({**props(s_x=STRING), "patternProperties": {"^s_": {"minLength": 2}}}, [{"s_x": "ab"}], [{"s_x": "a"}]),
    ({"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 4}, [[1, 2], [1, 2, 3, 4]], [[1], [1, 2, 3, 4, 5]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"prefixItems": [STRING, INTEGER], "items": False}, [[], ["a"], ["a", 1]], [[1], ["a", 1, 2]]),
    (
        {"type": "array", "prefixItems": [STRING, INTEGER], "minItems": 2, "maxItems": 4, "items": {"type": "boolean"}},
        [["a", 1], ["a", 1, True, False]],
        [["a"], ["a", 1, 2]],
    ),
    ({"type": "string", "minLength": 3, "maxLength": 5}, ["abc", "\U0001f600" * 5], ["ab", "abcdef"]),
    ({"type": "string", "minLength": 70, "maxLength": 300}, ["a" * 70, "a" * 300, "\n" * 131], ["a" * 69, "a" * 301]),
    ({"minLength": 2}, ["ab"], ["a", 1]),
    ({"pattern": r"^[a-z]+@\w{2,}\.(com|org)$", "maxLength": 20}, ["a@bc.com"], ["A@bc.com", "a@b.com", "a@bc.net"]),
    ({"pattern": r"\d{3}"}, ["123", "a1234"], ["12", "1a23"]),
    ({"pattern": "^a|b$"}, ["a...", "...b", "ab"], ["ba"]),
    ({"pattern": '^[^"a]{2,}$'}, ["\\\n", "\u4e2d\x01"], ['""', "a\n", "b"]),
    ({"pattern": "^(?:x|y(?P<n>z)?){2,3}?$"}, ["xx", "yzyzx"], ["x", "zz", "xxxx"]),
    ({"pattern": r"^\u00e9\x41\/\.\t$"}, ["\u00e9A/.\t"], ["\u00e9A/x\t"]),
    ({"pattern": "^a+$", "minLength": 3, "maxLength": 4}, ["aaa", "aaaa"], ["aa", "aaaaa"]),
    ({"format": "date"}, ["2024-02-29", "1999-12-31"], ["2023-02-29", "2024-04-31", "x"]),
    ({"format": "time"}, ["23:59:59Z", "00:00:00.25+01:30"], ["24:00:00Z", "12:00:00"]),
    ({"format": "date-time"}, ["2024-02-29T12:00:00Z"], ["2024-02-30T12:00:00Z", "2024-02-29"]),
    ({"format": "uuid"}, ["01234567-89ab-cdef-0123-456789abcdef"], ["0123"]),
    ({"format": "email"}, ["a.b@c-d.org"], ["a@", "@b"]),
    ({"format": "ipv4"}, ["255.0.10.9"], ["256.0.0.1"]),
    ({"format": "ipv6"}, ["0:1:2:3:4:5:6:ffff"], ["0:1"]),
    ({"format": "hostname"}, ["a.b-c.org"], ["-a"]),
    ({"format": "uri"}, ["https://a.org/b?c=d"], ["a b"]),
    ({"format": "duration"}, ["P3DT4H", "PT5M"], ["P", "3D"]),
    ({"type": "string", "format": "colour"}, ["anything"], []),
    ({"type": "integer", "minimum": -120, "maximum": 7}, [-120, -9, 0, 7], [-121, 8, 1.5]),
    ({"type": "integer", "exclusiveMinimum": 0, "maximum": 1.5}, [1], [0, 2]),
    ({"type": "integer", "minimum": 10**20}, [10**20, 10**20 + 5], [10**20 - 1]),
    ({"type": "integer", "maximum": -5}, [-5, -500], [-4, 0]),
    ({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 30}, [0, 28], [1, 35]),
    ({"type": "number", "minimum": -1.25, "exclusiveMaximum": 99.5}, [-1.25, 0, 99.499, 99], [-1.26, 99.5, 100]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.001, 1, 1.0, 0.5], [0, 1.001]),
    ({"type": "number", "minimum": 0.1, "maximum": 0.1}, [0.1], [0.11, 0]),
    ({"type": "number", "minimum": 2.5, "maximum": 2.75}, [2.5, 2.625, 2.75], [2.49, 2.76, 2]),
    ({"anyOf": [STRING, props("k", k={"const": 1})]}, ["x", {"k": 1}], [{"k": 2}, 1]),
    ({"type": "object", "anyOf": [props("a", a=INTEGER), STRING]}, [{"a": 1}], ["x"]),
    (
        {"oneOf": [props("t", t={"const": "a"}, x=INTEGER), props("t", t={"const": "b"}, x=STRING)]},
        [{"t": "a", "x": 1}, {"t": "b", "x": "1"}],
        [{"t": "a", "x": "1"}],
    ),
    ({"oneOf": [props("a", a=INTEGER), props("b", b=INTEGER)]}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    ({"oneOf": [{"maximum": 3, "type": "number"}, {"exclusiveMinimum": 3, "type": "number"}]}, [3, 4], []),
    ({"allOf": [props("a", a=INTEGER), props("b", b=STRING)]}, [{"a": 1, "b": ""}], [{"a": 1}, {"b": ""}]),
    ({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, [3, 5], [2, 6]),
    ({"allOf": [{"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER, {"type": "null"}]}]}, [1], ["x", None]),
    ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, [{"value": 1, "next": {"value": 2, "next": None}}], [{}]),
    (
        {"definitions": {"a/b": {"type": "null"}}, "items": {"$ref": "#/definitions/a~1b"}, "type": "array"},
        [[], [None, None]],
        [[1]],
    ),
    (
        {**props(more={"type": "array", "items": {"allOf": [{"$ref": "#"}, {"required": ["more"]}]}})},
        [{}, {"more": [{"more": []}]}],
        [{"more": [{}]}],
    ),
    (props(a=False, b={"type": "null"}), [{}, {"b": None}], [{"a": 1}]),
    ({"title": "T", "description": "D", "default": 3, "x-y": 1, "type": "integer"}, [3], ["x"]),
]


@pytest.mark.parametrize(("schema", "allowed", "refused"), SCHEMAS, ids=[json.dumps(one[0])[:60] for one in SCHEMAS])
def test_a_schema_allows_what_is_valid_and_nothing_else(
    judge: Oracle, schema: Any, allowed: list[Any], refused: list[Any]
) -> None:
    check, grammar = validator(schema), structured.grammar_of(schema, "schema")

    drawn = [Sentences(grammar).draw(random.Random(seed)) for seed in range(N_TEXTS)]
    written = [json.dumps(instance, ensure_ascii=False) for instance in (*allowed, *refused)]

    assert [text for text in drawn if not check.is_valid(json.loads(text))] == []
    assert judge.verdicts(grammar, drawn) == "y" * N_TEXTS
    verdicts = judge.verdicts(grammar, written)
    wrong = [text for text, verdict, good in zip(written, verdicts, [1] * len(allowed) + [0] * 99, strict=False)
             if (verdict == "y") != bool(good)]  # fmt: skip
    assert wrong == []


def test_null_is_a_value_of_what_is_nullable(judge: Oracle) -> None:
    grammar = structured.grammar_of({"type": "integer", "nullable": True}, "schema")

    assert judge.verdicts(grammar, ["null", "1", '""']) == "yyn"


def test_a_pretty_and_a_dense_text_belong_to_the_same_grammar(judge: Oracle) -> None:
    value = {"a": 1, "b": [{"a": 2, "b": []}]}
    inner = {"type": "array", "items": props("a", a=INTEGER, b={"type": "array"})}
    grammar = structured.grammar_of(props("a", "b", a=INTEGER, b=inner), "schema")

    texts = [json.dumps(value), json.dumps(value, indent=2), json.dumps(value, separators=(",", ":"))]

    assert judge.verdicts(grammar, texts) == "yyy"
    assert judge.verdicts(grammar, ['{ \n"a": 1', '{"a":  1', '{"a": 1}\n', '{"a":1,\n\n']) == "nnnn"


def test_any_object_is_an_object_of_any_values(judge: Oracle) -> None:
    rules = structured.any_object_rules()
    grammar = structured.grammar(rules.start, rules)
    values = [{}, {"a": [1, "x", None, {"b": {"c": True}}]}, {"\u00e9": -1.5e-7}]

    assert judge.verdicts(grammar, [json.dumps(value, ensure_ascii=False) for value in values]) == "yyy"
    assert judge.verdicts(grammar, ["[]", "1", '{"a"}', '{"a": 01}']) == "nnnn"
    drawn = [Sentences(grammar).draw(random.Random(seed)) for seed in range(N_TEXTS)]
    assert all(isinstance(json.loads(text), dict) for text in drawn)


def test_the_rules_of_several_schemas_fit_into_one_grammar(judge: Oracle) -> None:
    one = structured.fragment(props("a", a=STRING), "tools[0]", "one")
    two = structured.fragment(props("b", b={"type": "array", "items": STRING}), "tools[1]", "two")

    grammar = structured.grammar(f'"f" {one.start} | "g" {two.start}', one, two)

    assert judge.verdicts(grammar, ['f{"a": "x"}', 'g{"b": ["x"]}', 'f{"b": ["x"]}']) == "yyn"
    assert grammar.count("json-escape ::=") == 1


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = INTEGER
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


WIDE = {f"p{i}": INTEGER for i in range(1001)}
REFUSED: list[tuple[Any, str]] = [
    ([], "#: a schema must be an object"),
    ({"type": "text"}, "#/type: 'type' must be one of null, boolean"),
    ({"type": []}, "#/type"),
    ({"properties": []}, "#/properties"),
    (props(a=1), "#/properties/a: a schema must be"),
    ({"required": "a"}, "#/required: 'required' must be a list of strings"),
    ({"minLength": -1}, "#/minLength: 'minLength' must be an integer of at least 0"),
    ({"minLength": True}, "#/minLength"),
    ({"maximum": "5"}, "#/maximum: 'maximum' must be a number"),
    ({"exclusiveMaximum": True, "maximum": 3}, "#/exclusiveMaximum: 'exclusiveMaximum' must be a number"),
    ({"enum": []}, "#/enum: 'enum' must be a list of at least one"),
    ({"properties": 5}, "#/properties: 'properties' must be an object that gives names schemas"),
    ({"properties": True}, "#/properties: 'properties' must be an object that gives names schemas"),
    ({"enum": ["\ud800"]}, "#/enum: holds what JSON cannot"),
    ({"not": INTEGER}, "#/not: 'not' is not supported"),
    (props(a={"if": {}, "then": {}}), "#/properties/a/if: 'if' is not supported"),
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems: 'uniqueItems' is not supported"),
    ({"contains": {}}, "#/contains"),
    ({"unevaluatedProperties": False}, "#/unevaluatedProperties"),
    ({"dependentRequired": {}}, "#/dependentRequired"),
    ({"multipleOf": 0.1, "type": "number"}, "'multipleOf' is only supported"),
    ({"multipleOf": 7, "type": "integer"}, "at most 1000 values"),
    # A least above a most.
    ({"minItems": 5, "maxItems": 2}, "#/minItems: 'minItems' is above 'maxItems'"),
    ({"minLength": 5, "maxLength": 2}, "#/minLength"),
    ({"minProperties": 5, "maxProperties": 2}, "#/minProperties"),
    ({"minimum": 5, "maximum": 2}, "#/minimum: 'minimum' is above 'maximum'"),
    ({"minimum": 5, "exclusiveMaximum": 5}, "#/minimum"),
    ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no integer lies between"),
    ({"pattern": "a{2,1}"}, "#/pattern: 'pattern': the repetition's most is below its least at character 2"),
    ({"pattern": "^abc$", "maxLength": 2}, "its shortest text has 3 characters"),
    ({"pattern": "^abc$", "minLength": 4}, "minLength"),
    # Patterns.
    ({"pattern": "a(?=b)"}, "look-ahead ((?=...) cannot be enforced at character 2"),
    ({"pattern": "(?<!a)b"}, "look-behind"),
    ({"pattern": r"(a)\1"}, "back-references"),
    ({"pattern": r"\bword"}, "word boundaries"),
    ({"pattern": r"\p{L}"}, "Unicode properties"),
    ({"pattern": "a^b"}, "an anchor stands where text comes before ^"),
    ({"pattern": "(a"}, "this '(' is never closed"),
    ({"pattern": "[a"}, "this '[' is never closed"),
    ({"pattern": "[z-a]"}, "a range that ends before it begins"),
    ({"pattern": "*"}, "nothing to repeat"),
    ({"pattern": "(" * 65 + ")" * 65}, "nested deeper than 64"),
    ({"pattern": "(" * 900 + ")" * 900}, "nested deeper than 64"),
    ({"pattern": "a{2001}"}, "at most 2000 repetitions"),
    ({"pattern": "((a{100}){100}){100}"}, "repeated so often"),
    ({"pattern": "a?" * 3000}, "at most 2000 are taken"),
    # References.
    ({"$ref": "https://example.com/s.json"}, "#/$ref: 'https://example.com/s.json' lies outside"),
    ({"$ref": "file:///etc/passwd"}, "is not fetched"),
    ({"$ref": "other.json#/a"}, "is not fetched"),
    ({"$ref": "#/$defs/none"}, "#/$ref: '#/$defs/none' points to nothing"),
    ({"$ref": "#name"}, "is no pointer"),
    ({"$ref": "#"}, "leads back to itself"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "leads back to itself"),
    ({"anyOf": [{"$ref": "#"}, INTEGER]}, "leads back to itself"),
    ({"allOf": [{"$ref": "#"}, INTEGER]}, "leads back to itself"),
    (props("a", a={"$ref": "#/properties/a"}), "leads back to itself"),
    # Contradictions.
    (False, "no value can be valid"),
    ({"allOf": [INTEGER, STRING]}, "no value is both of type integer and of type string"),
    ({"allOf": [{"enum": [1]}, {"enum": [2]}]}, "no value is in both"),
    ({"allOf": [{"minItems": 3}, {"maxItems": 2}], "type": "array"}, "no value can be valid"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "'pattern' stands in two schemas"),
    (props("a", a=False), "the required property 'a' has no value"),
    ({**props("b", a=INTEGER), "additionalProperties": False}, "the required property 'b' has no value"),
    ({"enum": [1, 2], "type": "string"}, "allow none of its values"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf: a value may be valid for both 0 and 1"),
    ({"oneOf": [props(a=INTEGER), props(b=INTEGER)]}, "use anyOf"),
    # Size.
    (deep(65), "nested deeper than 64"),
    (deep(5000), "nested deeper than 64"),
    ({"type": "object", "properties": WIDE}, "more than 1000 properties"),
    ({"enum": list(range(1001))}, "has 1001 values, and at most 1000"),
    ({"required": [f"p{i}" for i in range(1001)]}, "at most 1000"),
    ({"enum": ["x" * 100 + str(i) for i in range(1000)]}, "more than 65536 bytes"),
    ({"const": [0] * 30_000}, "more than 20000 values"),
    ({"minItems": 2001, "type": "array"}, "must be at most 2000"),
    ({"minLength": 10**9}, "must be at most 2000"),
    ({"type": "number", "allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(15)]}, "too many"),
    ({**props(**{f"p{i}": STRING for i in range(200)}), "minProperties": 100}, "takes more than"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=[words[:50] for _, words in REFUSED])
def test_what_cannot_be_held_is_refused_by_name_and_soon(schema: Any, words: str) -> None:
    def convert() -> None:
        with pytest.raises(InvalidSchema) as refused:
            structured.grammar_of(schema, "response_format.json_schema.schema")
        assert words in str(refused.value)
        assert str(refused.value).startswith("response_format.json_schema.schema: the schema at #")
        assert (refused.value.param, refused.value.code) == ("response_format.json_schema.schema", "invalid_schema")

    assert least_seconds(convert, 0.5) < 0.5  # 0.05 on a machine that does nothing else, which a test cannot ask for


def test_a_schema_at_the_limits_is_taken(judge: Oracle) -> None:
    names = [f"p{i}" for i in range(1000)]
    widest = props(*names, **dict.fromkeys(names, INTEGER))
    for schema in (
        deep(64),
        widest,
        {"enum": list(range(1000))},
        {"minLength": 2000},
        {"type": "array", "minItems": 2000},
    ):
        assert judge.verdicts(structured.grammar_of(schema, "schema"), ["?"]) == "n"


def test_limits_are_what_they_are_set_to() -> None:
    limits = SchemaLimits(properties=2, enum=1, depth=3)

    for schema in (props(a={}, b={}, c={}), {"enum": [1, 2]}, deep(4)):
        with pytest.raises(InvalidSchema):
            structured.grammar_of(schema, "schema", limits)
