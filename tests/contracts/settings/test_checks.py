"""Checks of settings: what they let pass, and their words."""

import math

import pytest

from corosrv.contracts.settings.sources import (
    FOLDER,
    PLAIN,
    URL,
    Check,
    at_least,
    between,
    empty_or,
    none_or,
    of_bytes,
    one_of,
    or_else,
)


@pytest.mark.parametrize(
    ("check", "good", "bad", "words"),
    [
        (between(1, 60), [1, 59.5, 60], [0, 60.5, -1], "must be from 1 to 60"),
        (at_least(1), [1, 10**9], [0, 0.5], "must be at least 1"),
        (of_bytes(0), [0, 2**63 - 1], [-1, 2**63], "must be at least 0, and below 2**63"),
        (one_of("on", "off", "auto"), ["on", "auto"], ["", "ON"], "must be 'on', 'off' or 'auto'"),
        (empty_or(one_of("a", "b")), ["", "a"], ["c"], "must be 'a' or 'b', or empty"),
        (none_or(between(1, 2)), [None, 1], [0, 3], "must be from 1 to 2"),
        (or_else(-1, between(0.1, 9)), [-1, 0.1], [0, -2], "must be -1 or from 0.1 to 9"),
        (FOLDER, ["/"], ["/nowhere", __file__], "must be a folder"),
        (URL, ["http://a", "https://a/b"], ["", "ftp://a", "a"], "must be an http or https URL"),
        (PLAIN, ["", "a b"], ["é", "a\n"], "must be printable ASCII"),
    ],
)
def test_a_check_lets_pass_what_its_words_say(check: Check, good: list, bad: list, words: str):
    assert [value for value in good if not check.is_good(value)] == []
    assert [value for value in bad if check.is_good(value)] == []
    assert check.words == words


@pytest.mark.parametrize("check", [between(0, 1), at_least(0), of_bytes(0), or_else(-1, between(0, 1))])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_finite_number_is_never_good(check: Check, value: float):
    assert not check.is_good(value)
