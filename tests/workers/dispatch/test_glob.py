"""Glob patterns."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.workers.dispatch.capability import MAX_LENGTH, check_glob, matches_glob
from tests.support.processor_time import least_seconds


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("llama*", "llama-3", True),
        ("llama*", "my-llama", False),
        ("*-3", "llama-3", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("ab*ba", "aba", False),
        ("a.c", "abc", False),
        ("*?b*", "ab", True),
    ],
)
def test_a_pattern_describes_all_of_the_text(pattern: str, text: str, is_match: bool):
    assert matches_glob(pattern, text) is is_match


@given(st.text("ab*?", max_size=8), st.text("abc", max_size=10))
def test_patterns_match_what_the_regular_expression_matches(pattern: str, text: str):
    expression = "".join({"*": ".*", "?": "."}.get(mark, re.escape(mark)) for mark in pattern)

    assert matches_glob(pattern, text) is bool(re.fullmatch(expression, text, re.DOTALL))


def test_a_hostile_pattern_takes_no_longer_than_its_length_allows():
    pattern = ("*a?" * 100)[: MAX_LENGTH - 1] + "b"

    assert not matches_glob(pattern, "a" * 10_000)
    assert least_seconds(lambda: matches_glob(pattern, "a" * 10_000), 1) < 1


def test_classes_and_long_patterns_are_refused():
    assert "[" in (check_glob("a[bc]") or "")
    assert "256" in (check_glob("a" * 257) or "")
    assert check_glob("a*") is None
