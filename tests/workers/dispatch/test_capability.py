"""Capability queries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import Refused
from corosrv.workers.dispatch.capability import header_query, parse_preferences, parse_query, weigh

CAPABILITY = {"type": "embed", "tier": "small", "ctx": 2048, "ratio": 0.5, "gpu": True}


@pytest.mark.parametrize(
    "query",
    [
        {"type": "embed"},
        {"ctx": 2048.0},
        {"gpu": True},
        {"tier": ["large", "small"]},
        {"ctx": {"gte": 2048, "lt": 4096}},
        {"ctx": {"gt": 2047.5}},
        {"ratio": {"lte": 0.5}},
        {"tier": {"ne": "large"}},
        {"absent": {"ne": "large"}},
        {"absent": {"exists": False}},
        {"tier": {"exists": True}},
        {"tier": {"prefix": "sm"}},
        {"tier": {"glob": "s?a*"}},
        {"ctx": {"ne": "2048"}},
        {"ctx": {"text": ">=2000"}},
        {"ctx": {"text": "2048"}},
        {"gpu": {"text": "True"}},
        {"type": {"text": "embed"}},
    ],
)
def test_a_capability_satisfies(query: dict[str, object]):
    assert parse_query(query).matches(CAPABILITY)


@pytest.mark.parametrize(
    "query",
    [
        {"type": "chat"},
        {"type": "Embed"},
        {"gpu": 1},
        {"ctx": "2048"},
        {"ctx": True},
        {"absent": "x"},
        {"absent": {"exists": True}},
        {"tier": {"exists": False}},
        {"absent": {"gt": 1}},
        {"absent": ["x"]},
        {"absent": {"text": "x"}},
        {"tier": {"gt": 1}},
        {"gpu": {"gte": 0}},
        {"ctx": {"ne": 2048.0}},
        {"ctx": {"prefix": "20"}},
        {"ctx": {"gte": 1, "lt": 2048}},
        {"ctx": {"text": "<2048"}},
        {"ctx": {"text": "nan"}},
        {"ctx": {"text": "2_048"}},
        {"type": "embed", "tier": "large"},
    ],
)
def test_a_capability_does_not_satisfy(query: dict[str, object]):
    assert not parse_query(query).matches(CAPABILITY)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "empty"),
        ({"a": {"near": 1}}, "unknown operator 'near'"),
        ({"a": {}}, "empty object"),
        ({"a": {"gt": {"b": 1}}}, "must be"),
        ({"a": {"b": {"c": 1}}}, "unknown operator 'b'"),
        ({"a": None}, "must be"),
        ({"a": []}, "0 values"),
        ({"a": [[1]]}, "must be"),
        ({"a": list(range(65))}, "65 values"),
        ({"a": {"gt": "1"}}, "needs a number"),
        ({"a": {"gt": True}}, "needs a number"),
        ({"a": {"prefix": 1}}, "needs a string"),
        ({"a": {"exists": 1}}, "needs a boolean"),
        ({"a": {"glob": "[a]"}}, "pattern"),
        ({"a": math.nan}, "finite"),
        ({"a": "x" * 1025}, "1024"),
        ({"": 1}, "name"),
        ({"a" * 129: 1}, "name"),
        ({f"a{i}": 1 for i in range(33)}, "32"),
    ],
)
def test_a_wrong_query_is_refused_in_words(query: dict[str, object], message: str):
    with pytest.raises(Refused, match=message):
        parse_query(query)


def test_a_refusal_names_the_attribute():
    with pytest.raises(Refused) as refusal:
        parse_query({"ctx": {"near": 1}})

    assert refusal.value.param == "capability.ctx"


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["gt", "ne", "glob", "text", "x"]), inner, max_size=2)
            ),
        ),
    )
)
def test_any_query_is_either_refused_or_answered(query: dict[str, object]):
    try:
        parsed = parse_query(query)
    except Refused:
        return

    assert parsed.matches(CAPABILITY) in (True, False)


@pytest.mark.parametrize("value", ["Small", "S-M_A.L L", "SMALL"])
def test_fuzzy_queries_ignore_case_and_separators(value: str):
    query = parse_query({"tier": value})

    assert query.matches(CAPABILITY, is_fuzzy=True)
    assert not query.matches(CAPABILITY)


def test_fuzzy_lists_and_header_texts_are_folded_too():
    assert parse_query({"tier": ["LARGE", "SMALL"]}).matches(CAPABILITY, is_fuzzy=True)
    assert parse_query({"tier": {"text": "SMALL"}}).matches(CAPABILITY, is_fuzzy=True)


def test_attributes_that_the_query_lacks_are_counted():
    assert parse_query({"type": "embed", "none": {"exists": False}}).count_extra(CAPABILITY) == 4


@pytest.mark.parametrize(
    ("preference", "weight"),
    [
        ("tier=small", 2.0),
        ("tier=large", 0.0),
        ("ctx>=2048", 2.0),
        ("ctx<2048", 0.0),
        ("gpu", 2.0),
        ("tpu", 0.0),
        ("gpu=true", 2.0),
    ],
)
def test_a_satisfied_preference_adds_its_weight(preference: str, weight: float):
    assert weigh(parse_preferences({preference: 2.0}), CAPABILITY) == weight


def test_a_value_of_a_preference_may_hold_signs():
    assert weigh(parse_preferences({"type=a>=b": 1}), {"type": "a>=b"}) == 1


@pytest.mark.parametrize(
    "prefer", [{"a=1": math.inf}, {"a=1": "2"}, {"a=1": True}, {"=1": 1}, {f"a{i}": 1 for i in range(33)}]
)
def test_a_wrong_preference_is_refused(prefer: dict[str, float]):
    with pytest.raises(Refused):
        parse_preferences(prefer)


def test_headers_make_a_query_that_reads_values_by_the_type_of_the_attribute():
    query = header_query(
        [("X-Capability-Type", "embed"), ("x-cap-ctx", " >=2000 "), ("X-Cap-GPU", "true"), ("Accept", "*/*")]
    )

    assert query.keys() == {"type", "ctx", "gpu"}
    assert parse_query(query).matches(CAPABILITY)


def test_dashes_of_a_header_become_underscores():
    assert header_query([("X-Cap-Max-Len", "5")]) == {"max_len": {"text": "5"}}


def test_a_header_that_comes_twice_is_refused():
    with pytest.raises(Refused, match="two headers"):
        header_query([("X-Cap-Ctx", "1"), ("X-Capability-ctx", "2")])


def test_requests_without_capability_headers_make_no_query():
    assert header_query([("X-Cap-", "1"), ("X-Request-Id", "2")]) == {}
