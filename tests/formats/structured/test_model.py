"""The real model keeps to schemas, at any temperature and among others, and comes to an end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from corosrv.contracts.jobs import Finish, Job, Messages, Sampling
from corosrv.formats import structured
from corosrv.models.engine import Engine
from tests.support.engines import read_all, text_of

pytestmark = pytest.mark.model

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "role": {"enum": ["admin", "user", "\u00e9lu"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "age", "role"],
    },
    {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 1}, "minItems": 2, "maxItems": 4},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "day"}, "date": {"type": "string", "format": "date"}},
             "required": ["kind", "date"]},
            {"type": "object", "properties": {"kind": {"const": "code"}, "code": {"pattern": "^[A-Z]{2}-\\d{3}$"}},
             "required": ["kind", "code"]},
        ]
    },
    {
        "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"},
                  "left": {"$ref": "#/$defs/tree"}}, "required": ["v"]}},
        "$ref": "#/$defs/tree",
        "maxProperties": 1,
    },
]  # fmt: skip


def asked(schema: dict[str, Any], temperature: float, seed: int) -> Job:
    sampling = Sampling(temperature=temperature, seed=seed, top_k=0 if temperature > 1 else 40)
    grammar = structured.grammar_of(schema, "schema")
    prompt = Messages(({"role": "user", "content": "Give me an example in JSON."},))
    return Job((prompt,), max_tokens=200, sampling=replace(sampling, grammar=grammar))


def test_sixteen_schemas_at_once_are_kept_to_at_any_temperature(smollm2: Engine) -> None:
    asks = [(schema, heat) for schema in SCHEMAS for heat in (0, 0.8, 0.8, 1.5)]
    readers = [smollm2.submit(asked(schema, heat, seed)) for seed, (schema, heat) in enumerate(asks)]

    for (schema, _), reader in zip(asks, readers, strict=True):
        chunks = read_all(reader)
        errors = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).iter_errors(
            json.loads(text_of(chunks))
        )

        assert [error.message for error in errors] == []
        assert chunks[-1].finish is Finish.STOP


def test_a_schema_that_sets_no_end_is_kept_to_as_far_as_the_tokens_go(smollm2: Engine) -> None:
    chunks = read_all(smollm2.submit(asked({"type": "array", "items": {"type": "string"}, "minItems": 500}, 0.8, 1)))

    assert chunks[-1].finish is Finish.LENGTH
    assert text_of(chunks).startswith("[")
