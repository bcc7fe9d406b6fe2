"""Defaults for what requests leave open: they are held to what the fields of requests are held to."""

from typing import Any

import msgspec
import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ModelSettings
from corosrv.dialects.generation.fields import GenerationFields
from corosrv.dialects.openai.embeddings import EmbeddingFields

FRACTION, POSITIVE = ([0.0, 1.0], [-0.1, 1.1, float("nan")]), ([0.0, 1e6], [-0.1, 1e6 + 1, float("inf")])
RANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "typical_p": FRACTION,
    "top_n_sigma": ([-1.0, 1e6], [-1.1, 1e6 + 1]),
    "xtc_probability": FRACTION,
    "xtc_threshold": FRACTION,
    "dynatemp_range": POSITIVE,
    "dynatemp_exponent": POSITIVE,
    "dry_multiplier": POSITIVE,
    "dry_base": POSITIVE,
    "dry_allowed_length": ([0, 2**31 - 1], [-1, 2**31]),
    "dry_penalty_last_n": ([-1, 2**31 - 1], [-2, 2**31]),
    "mirostat": ([0, 2], [-1, 3]),
    "mirostat_tau": POSITIVE,
    "mirostat_eta": POSITIVE,
    "adaptive_target": ([-1.0, 1.0], [-1.1, 1.1]),
    "adaptive_decay": ([0.0, 0.99], [-0.1, 1.0]),
    "n_keep": ([-1, 2**31 - 1], [-2, 2**31]),
    "embd_normalize": ([-1, 100], [-2, 101]),
}
SETTINGS = {"n_keep": "keep"}  # that have another name


def is_taken_by_a_request(name: str, value: Any) -> bool:
    try:
        msgspec.convert({name: value}, EmbeddingFields if name == "embd_normalize" else GenerationFields)
    except msgspec.ValidationError:
        return False
    return True


def is_taken_by_a_setting(name: str, value: Any) -> bool:
    try:
        ModelSettings(model="synthetic:", **{SETTINGS.get(name, name): value})
    except SettingsError:
        return False
    return True


@pytest.mark.parametrize("name", RANGES)
def test_a_default_has_the_range_of_the_field(name):
    allowed, others = RANGES[name]

    for is_taken in (is_taken_by_a_request, is_taken_by_a_setting):
        assert [value for value in allowed if not is_taken(name, value)] == []
        assert [value for value in others if is_taken(name, value)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stop", '["a", "b"]'),
        ("stop", "[]"),
        ("logit_bias", "1+1,2-100,3+0.5,4-inf"),
        ("samplers", "penalties; top-k ;typical"),
        ("dry_sequence_breakers", '["\\n"]'),
        ("json_schema", '{"type": "object"}'),
    ],
)
def test_a_list_is_taken(name, text):
    assert getattr(ModelSettings(model="synthetic:", **{name: text}), name) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stop", "END"),
        ("stop", '[""]'),
        ("stop", '["a"' + ', "a"' * 64 + "]"),
        ("stop", "[" * 100_000),
        ("logit_bias", "1"),
        ("logit_bias", "1+100.5"),
        ("logit_bias", "1+inf"),
        ("logit_bias", ",".join(["1+1"] * 1025)),
        ("samplers", "top_k,min_p"),
        ("dry_sequence_breakers", '{"a": 1}'),
        ("grammar", "a" * 100_001),
    ],
)
def test_what_is_no_such_list_stops_the_start(name, text):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must"):
        ModelSettings(model="synthetic:", **{name: text})
