"""Schemas: what is drawn from a grammar is valid, and what is valid belongs to it."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from corosrv.base.errors import InvalidSchema
from corosrv.formats import structured
from tests.support.oracle import shared_oracle
from tests.support.sentences import Sentences

N_TEXTS = 6
_NAMES = ("a", "ab", "b", "\u00e9")  # in their order: a grammar keeps to that of the schema
_COUNTS = st.integers(0, 4)
_NUMBERS = st.integers(-20, 120) | st.sampled_from([0.5, -1.25, 2.0, 99.5, 1e-3])

_SCALARS = (
    st.none() | st.booleans() | _NUMBERS | st.sampled_from(["", "a", "ab", "b\n", '"\\', "\u00e9\U0001f600", "aaa"])
)


def _objects_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(_NAMES), values, max_size=3).map(lambda found: dict(sorted(found.items())))


VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | _objects_of(inner), max_leaves=5)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


_LEAVES = st.one_of(
    st.booleans(),
    st.builds(dict, type=st.sampled_from(["null", "boolean", "string", "integer", "number", "array", "object"])),
    st.builds(dict, enum=st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(dict, const=VALUES),
    _some(
        type=st.just("string"), minLength=_COUNTS, maxLength=_COUNTS, pattern=st.sampled_from(["^a", "b$", "^a{2,}$"])
    ),
    _some(
        type=st.sampled_from(["integer", "number", ["number", "null"]]),
        minimum=_NUMBERS,
        maximum=_NUMBERS,
        exclusiveMinimum=_NUMBERS,
        exclusiveMaximum=_NUMBERS,
    ),
    st.just({"$ref": "#/$defs/x"}),
)


def _with(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4).map(
        lambda found: dict(sorted(found.items()))
    )
    branches = st.lists(inner, min_size=1, max_size=3)
    closed = st.fixed_dictionaries(
        {"properties": properties, "additionalProperties": st.just(False)},
        optional={
            "type": st.just("object"),
            "required": st.lists(st.sampled_from(_NAMES), max_size=2, unique=True),
            "minProperties": _COUNTS,
            "maxProperties": _COUNTS,
        },
    )
    return st.one_of(
        closed,
        _some(type=st.just("object"), additionalProperties=inner, maxProperties=_COUNTS),
        _some(type=st.just("array"), items=inner, prefixItems=branches, minItems=_COUNTS, maxItems=_COUNTS),
        st.fixed_dictionaries({"anyOf": branches}, optional={"type": st.sampled_from(["object", "string", "integer"])}),
        st.builds(dict, oneOf=branches),
        st.builds(dict, allOf=branches),
    )


_SCHEMAS = st.recursive(_LEAVES, _with, max_leaves=6)
EXAMPLES = st.fixed_dictionaries(
    {"schema": st.builds(lambda schema, x: {"allOf": [schema], "$defs": {"x": x}}, _SCHEMAS, _SCHEMAS) | _SCHEMAS,
     "values": st.lists(VALUES, max_size=6), "seed": st.integers(0, 2**32)}
)  # fmt: skip


def check(example: dict[str, Any]) -> None:
    schema = example["schema"]
    try:
        grammar = structured.grammar_of(schema, "schema")
    except InvalidSchema:
        return
    valid = Draft202012Validator(schema)
    chance = random.Random(example["seed"])
    drawn = [Sentences(grammar).draw(chance) for _ in range(N_TEXTS)]

    for text in drawn:
        errors = [error.message for error in valid.iter_errors(json.loads(text))]
        assert not errors, (text, errors, grammar)
    assert shared_oracle().verdicts(grammar, drawn) == "y" * N_TEXTS, grammar
    written = [json.dumps(value, ensure_ascii=False) for value in example["values"]]
    for text, verdict in zip(written, shared_oracle().verdicts(grammar, written), strict=True):
        assert verdict != "y" or valid.is_valid(json.loads(text)), (text, grammar)
        assert verdict == "y" or not _has_to_allow(schema) or not valid.is_valid(json.loads(text)), (text, grammar)


def _has_to_allow(schema: Any) -> bool:
    """All that is valid belongs to the grammar: nothing in it is narrower than what is asked for."""
    text = json.dumps(schema)
    narrower = ("minLength", "maxLength", '"pattern"', "anyOf", "oneOf", "allOf", "$ref", 'additionalProperties": {')
    return not any(word in text for word in narrower) and _names_types(schema)


def _names_types(schema: Any) -> bool:
    """No schema leaves the type to what it is about, nor properties to whoever asks."""
    if isinstance(schema, list):
        return all(_names_types(inner) for inner in schema)
    if not isinstance(schema, dict):
        return True
    if not {"type", "enum", "const"} & schema.keys() and schema:
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("prefixItems", []), schema.get("items", True)]
    return _names_types(inner)
