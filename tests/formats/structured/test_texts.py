"""Regular expressions and lists of texts become grammars of just these texts; or they are refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corosrv.base.errors import Refused
from corosrv.formats import structured
from corosrv.formats.structured.limits import DEFAULT_LIMITS
from tests.support.oracle import Oracle, oracle


@pytest.fixture(scope="module")
def judge() -> Iterator[Oracle]:
    with oracle() as found:
        yield found


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("abc", ["abc"], ["xabc", "ab", "abcd", ""]),
        ("^abc$", ["abc"], ["xabc", "abcd"]),
        ("^a|b$", ["a", "b"], ["ab", "ax", "xb"]),
        ("(a|bc)*d", ["d", "abcd", "bcbcad"], ["ab", "da"]),
        ("a{2,3}", ["aa", "aaa"], ["a", "aaaa"]),
        ("a{40}b+", ["a" * 40 + "b", "a" * 40 + "b" * 300], ["a" * 39 + "b", "a" * 40]),
        ("[^0-9]+", ["abc", "\u00e9 \U0001f600", '"\\n'], ["a1", ""]),
        (r"\d{3}-\d{4}", ["555-1234"], ["5551234", "555-12345"]),
        (r"[\w.]+@\w+\.com", ["a.b@c.com"], ["a@b.org", "@b.com"]),
        (".*", ["", "anything at all", "x" * 500], ["two\nlines"]),
        (r"a\nb", ["a\nb"], ["a b", "anb"]),
        ('"quoted\\\\"', ['"quoted\\"'], ["quoted", '"quoted"']),
        ("", [""], ["x"]),
    ],
)
def test_a_pattern_stands_for_the_whole_text(judge: Oracle, pattern: str, matching: list[str], others: list[str]):
    rules = structured.pattern_rules(pattern, "guided_regex", "answer", DEFAULT_LIMITS)

    verdicts = judge.verdicts(structured.grammar(rules.start, rules), [*matching, *others])

    assert verdicts[: len(matching)] == "y" * len(matching), verdicts
    assert "y" not in verdicts[len(matching) :], verdicts


def test_a_choice_stands_for_its_texts_alone(judge: Oracle):
    texts = ["yes", "no", 'a "quoted" one', "two\nlines", "caf\u00e9", "back\\slash"]
    rules = structured.choice_rules(texts, "guided_choice", "answer", DEFAULT_LIMITS)

    verdicts = judge.verdicts(structured.grammar(rules.start, rules), [*texts, "maybe", "yesno", ""])

    assert verdicts[: len(texts)] == "y" * len(texts)
    assert "y" not in verdicts[len(texts) :]


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "a(?=b)", r"\1", "[b-a]", "x{3000}", "b^a", "((((a{99}){99}){99}){99})"]
)
def test_a_pattern_that_no_grammar_can_hold_is_refused(pattern: str):
    with pytest.raises(Refused, match="guided_regex: this regular expression cannot be used: ") as refused:
        structured.pattern_rules(pattern, "guided_regex", "answer", DEFAULT_LIMITS)

    assert refused.value.param == "guided_regex"
