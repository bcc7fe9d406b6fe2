"""Tests that structural tags become grammars of free text with tags in it, judged by the native grammar."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from corosrv.base.errors import Refused
from corosrv.formats import structured
from corosrv.formats.structured.gbnf import Rules
from corosrv.formats.structured.limits import DEFAULT_LIMITS, SchemaLimits
from corosrv.formats.structured.watched import WordOverlap, watched_text
from tests.support.oracle import Oracle, oracle

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ANY: dict[str, Any] = {"type": "any_text"}
SUM: dict[str, Any] = {"type": "tag", "begin": "<sum>", "content": INTEGER, "end": "</sum>"}
Y: dict[str, Any] = {"type": "regex", "pattern": "y{1,2}"}
N: dict[str, Any] = {"type": "const_string", "value": "n"}
YES: dict[str, Any] = {"type": "tag", "begin": "<say=yes>", "content": Y, "end": "."}
NO: dict[str, Any] = {"type": "tag", "begin": "<say=no>", "content": N, "end": ["!", "?"]}
TWO: dict[str, Any] = {"type": "triggered_tags", "triggers": ["<sum>", "<say="], "tags": [SUM, YES, NO]}


@pytest.fixture(scope="module")
def judge() -> Iterator[Oracle]:
    with oracle() as native:
        yield native


def grammar_of(tag: dict[str, Any], limits: SchemaLimits = DEFAULT_LIMITS) -> str:
    effort = structured.Effort(limits)
    rules = structured.tag_rules(
        structured.read_tag(tag, "tag"), "tag", "answer", limits, effort,
        lambda schema, param, prefix: structured.fragment(schema, param, prefix, limits, effort),
    )  # fmt: skip
    return structured.grammar(rules.start, rules)


def watched(words: dict[str, str | None], may_end: bool) -> str:
    bodies = dict(watched_text(words, "free", may_end))
    start = next(iter(bodies))
    return structured.grammar(start, Rules(start, bodies))


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        TWO,
        ["", "free", "a <sum>12</sum> b", "<sum>1</sum><say=yes>yy.<say=no>n? <su", "<<sum>3</sum>", "1 < 2"],
        ["<sum>", "<sum>x</sum>", "<sum>1</sum", "<say=maybe>", "<say=yes>n.", "<say=", "a <sum>1</sum> <sum>b"],
    ),
    ({**TWO, "at_least_one": True}, ["<sum>1</sum>", "<say=no>n!<sum>2</sum> x"], ["", "free", "<sum>1"]),
    ({**TWO, "stop_after_first": True}, ["", "free <sum>1</sum>"], ["<sum>1</sum> ", "<sum>1</sum><sum>1</sum>"]),
    ({**TWO, "at_least_one": True, "stop_after_first": True}, ["<sum>1</sum>"], ["", "a<sum>1</sum>", "<sum>1</sum>b"]),
    ({**TWO, "excludes": ["bad"]}, ["ba <sum>1</sum> bd", "ba"], ["bad", "<sum>1</sum>bbad"]),
    ({"type": "tag", "begin": "[", "content": {**TWO, "triggers": ["<s"]}, "end": "]"}, ["[]", "[a <sum>1</sum>]"],
     ["[", "[<sum>]", "[]x", "[<sum>1</sum>"]),
    ({"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"}, ["<t></t>", "<t>a </ b</t>"], ["<t>", "<t></t>x"]),
    ({"type": "tag", "begin": "", "content": ANY, "end": ["END", "STOP"]}, ["aEND", "SENSTOP"], ["aEN", "ENDEND"]),
    ({"type": "tag", "begin": "a", "content": SUM, "end": ""}, ["a<sum>1</sum>"], ["a", "a<sum>1</sum>b"]),
    ({"type": "sequence", "elements": [SUM, N, ANY]}, ["<sum>1</sum>n", "<sum>1</sum>nx"], ["<sum>1</sum>", "x"]),
    ({"type": "or", "elements": [SUM, YES]}, ["<sum>1</sum>", "<say=yes>y."], ["", "<sum>1</sum><say=yes>y."]),
    ({"type": "tags_with_separator", "tags": [SUM, NO], "separator": ", "},
     ["", "<sum>1</sum>", "<sum>1</sum>, <say=no>n!"],
     [", ", "<sum>1</sum>, ", "<sum>1</sum><sum>1</sum>"]),
    ({"type": "tags_with_separator", "tags": [SUM], "separator": "", "at_least_one": True},
     ["<sum>1</sum><sum>2</sum>"], [""]),
    ({"type": "tags_with_separator", "tags": [SUM], "separator": ",", "stop_after_first": True}, ["", "<sum>1</sum>"],
     ["<sum>1</sum>,<sum>1</sum>"]),
    (ANY, ["", "anything\nat all"], []),
    ({**ANY, "excludes": ["ab", "ba"]}, ["", "aacbb"], ["ab", "ccba"]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "matching", "others"), CASES)
def test_a_form_stands_for_its_texts(
    judge: Oracle, form: dict[str, Any], matching: list[str], others: list[str]
) -> None:
    verdicts = judge.verdicts(grammar_of({"format": form}), [*matching, *others])

    assert verdicts[: len(matching)] == "y" * len(matching), verdicts
    assert "y" not in verdicts[len(matching) :], verdicts


def test_structures_and_triggers_are_triggered_tags() -> None:
    old = {"structures": [{"begin": "<sum>", "schema": {"type": "integer"}, "end": "</sum>"}], "triggers": ["<s"]}
    new = {"format": {"type": "triggered_tags", "triggers": ["<s"], "tags": [SUM]}}

    assert grammar_of(old) == grammar_of(new)


def test_a_trigger_that_begins_with_another_gives_its_tags_to_it() -> None:
    both = {"format": {**TWO, "triggers": ["<s", "<sum>", "<say="]}}

    assert grammar_of(both) == grammar_of({"format": {**TWO, "triggers": ["<s"]}})


@pytest.mark.parametrize(
    "words", [("ab",), ("aab", "ba"), ("abab", "bb"), ("aa", "bab"), ("abb", "aba"), ("abab", "aabba", "bbb", "babaa")]
)
def test_watched_text_is_all_text_without_the_words(judge: Oracle, words: tuple[str, ...]) -> None:
    texts = ["".join(letters) for n in range(7) for letters in itertools.product("ab", repeat=n)]

    verdicts = judge.verdicts(watched(dict.fromkeys(words), may_end=True), texts)

    assert [verdict == "y" for verdict in verdicts] == [not any(word in text for word in words) for text in texts]


@pytest.mark.parametrize("words", [("ab",), ("aab", "ba"), ("abab", "bb")])
def test_watched_text_ends_with_the_first_word(judge: Oracle, words: tuple[str, ...]) -> None:
    texts = ["".join(letters) + "!" for n in range(7) for letters in itertools.product("ab", repeat=n)]

    verdicts = judge.verdicts(watched(dict.fromkeys(words, '"!"'), may_end=False), texts)

    ends = [[n for n in range(len(text)) if text[:n].endswith(words)] for text in texts]
    assert [verdict == "y" for verdict in verdicts] == [
        bool(places) and places[0] == len(text) - 1 for places, text in zip(ends, texts, strict=True)
    ]


@pytest.mark.parametrize(
    "words", [("<a>", "a"), ("abc", "ab"), ("ab", "abc"), ("cab", "ab"), ("caab", "xab", "aa"), ("xaby", "zabc", "ab")]
)
def test_a_word_within_another_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(WordOverlap) as raised:
        watched(dict.fromkeys(words), may_end=True)

    inner, outer = raised.value.args
    assert inner in outer
    assert inner != outer
    assert {inner, outer} <= set(words)


def test_words_that_only_share_parts_are_no_overlap() -> None:
    assert watched(dict.fromkeys(("abcd", "bce", "cab", "dd")), may_end=True)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"type": "sequence", "elements": [TWO, SUM]}, "elements.0.: free text has to be last"),
        ({"type": "tags_with_separator", "separator": ",", "tags": [{**SUM, "content": ANY, "end": ""}]}, "free text"),
        ({"type": "tag", "begin": "x", "content": TWO, "end": "<sum>"}, "have to differ"),
        ({"type": "tag", "begin": "x", "content": TWO, "end": "</sum>"}, None),
        ({"type": "tag", "begin": "x", "content": TWO, "end": "a<sum>"}, "stands within"),
        ({**TWO, "excludes": ["<"]}, "stands within"),
    ],
)
def test_a_form_whose_end_cannot_be_told_is_refused(form: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert grammar_of({"format": form})
        return
    with pytest.raises(Refused, match=words):
        grammar_of({"format": form})


@pytest.mark.parametrize("limits", [SchemaLimits(grammar_bytes=400), SchemaLimits(rules=10)])
def test_tags_over_a_limit_are_refused(limits: SchemaLimits) -> None:
    with pytest.raises(Refused, match="the tags together are too large"):
        grammar_of({"format": TWO}, limits)


def test_formats_too_deep_in_each_other_are_refused() -> None:
    form: dict[str, Any] = ANY
    for _ in range(DEFAULT_LIMITS.depth + 1):
        form = {"type": "or", "elements": [form]}

    with pytest.raises(Refused, match="too deep"):
        grammar_of({"format": form})
    for _ in range(5000):
        form = {"type": "or", "elements": [form]}
    with pytest.raises(Refused, match="too deep"):
        grammar_of({"format": form})


def test_a_long_text_takes_no_more_of_a_grammar_than_a_short_one(judge: Oracle) -> None:
    text = "1 < 2 <su <sum>12</sum> " * 2000

    assert judge.verdicts(grammar_of({"format": TWO}), [text]) == "y"
