"""Bounds of numbers: what lies within belongs to the grammar, and nothing else."""

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
_WHOLE = st.integers(-1500, 1500) | st.integers(-(10**14), 10**14)
_DECIMALS = st.builds(
    lambda digits, places: round(digits / 10**places, places), st.integers(-(10**6), 10**6), st.integers(0, 5)
)
_NUMBERS = _WHOLE | _DECIMALS | st.floats(-(10.0**9), 10.0**9)
EXAMPLES = st.fixed_dictionaries(
    {
        "schema": st.fixed_dictionaries(
            {"type": st.sampled_from(["integer", "number"])},
            optional=dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBERS),
        ),
        "numbers": st.lists(_WHOLE | _DECIMALS, max_size=6),
        "seed": st.integers(0, 2**32),
    }
)


def check(example: dict[str, Any]) -> None:
    schema = example["schema"]
    valid = Draft202012Validator(schema)
    bounds = [value for keyword, value in schema.items() if keyword != "type"]
    # So many digits before the point leave the others behind it.
    numbers = [number for number in (*example["numbers"], *bounds) if "e" not in repr(number) and abs(number) < 10**9]
    try:
        grammar = structured.grammar_of(schema, "schema")
    except InvalidSchema:
        assert not [number for number in numbers if valid.is_valid(number)], schema
        return
    chance = random.Random(example["seed"])

    for text in [Sentences(grammar).draw(chance) for _ in range(N_TEXTS)]:
        assert valid.is_valid(json.loads(text)), (text, grammar)
    if any(abs(bound) >= 10**9 for bound in bounds):
        return
    written = [json.dumps(number) for number in numbers if len(repr(number).partition(".")[2]) <= 5]
    for text, verdict in zip(written, shared_oracle().verdicts(grammar, written), strict=True):
        is_written_so = schema["type"] == "number" or "." not in text
        assert (verdict == "y") == (valid.is_valid(json.loads(text)) and is_written_so), (text, grammar)
