"""Rules that come to an end, and rules that never do."""

import pytest

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured import grammar_of
from corosrv.formats.structured.rule_book import endless


@pytest.mark.parametrize(
    ("bodies", "found"),
    [
        ({"a": '"x"'}, set()),
        ({"a": '"x" a'}, {"a"}),
        ({"a": '"x" a | "y"'}, set()),
        ({"a": '"x" a?'}, set()),
        ({"a": '"x" a*'}, set()),
        ({"a": '"x" a{0,5}'}, set()),
        ({"a": '"x" a+'}, {"a"}),
        ({"a": '"x" a{1,5}'}, {"a"}),
        ({"a": '("x" a | "y") b', "b": '"z"'}, set()),
        ({"a": '("x" (a | b)) "y"', "b": "a"}, {"a", "b"}),
        ({"a": "b", "b": "c", "c": '[a-z"\\]] "a"'}, set()),
        ({"a": '"a" b', "b": '"b" a', "c": '"a b" c?'}, {"a", "b"}),
        ({"a": '""'}, set()),
    ],
)
def test_a_rule_ends_when_some_text_of_it_does(bodies, found):
    assert endless(bodies) == found


def test_a_long_chain_of_rules_is_looked_at_in_linear_time():
    chain = {f"r{i}": f'"x" r{i + 1}' for i in range(2000)} | {"r2000": '"end"'}

    assert endless(chain) == set()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/b"}], "minItems": 1},
                   "b": {"type": "object", "properties": {"c": {"$ref": "#/$defs/a"}}, "required": ["c"]}},
         "$ref": "#/$defs/a"},
    ],
)  # fmt: skip
def test_a_schema_without_a_finite_value_is_refused(schema):
    with pytest.raises(InvalidSchema, match="without end"):
        grammar_of(schema, "schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
    ],
)
def test_a_schema_that_may_end_is_taken(schema):
    assert grammar_of(schema, "schema")
