"""Schemas of a few kilobytes that ask for work without end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from corosrv.base.errors import InvalidSchema, Refused
from corosrv.base.processor import Turns, garbage_times, thread_seconds
from corosrv.dialects.chat import answer_grammar
from corosrv.formats import structured
from corosrv.formats.callformats.description import HERMES
from corosrv.formats.structured import Effort, SchemaLimits
from corosrv.formats.structured.limits import DEFAULT_LIMITS
from corosrv.formats.structured.schema.check import check
from tests.support.processor_time import least_seconds

LIMITS = SchemaLimits(seconds=0.02)
# Seconds of the processor that a conversion may take between two looks at the effort, at which others may run. Most
# take less than a tenth of it; tests on all processors lengthen them.
HELD = 0.05


def chain(link: Callable[[dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    """Sixty definitions, each of which is made of the next one; followed one by one they would never end."""
    links = {str(i): link({"$ref": f"#/$defs/{i + 1}"}) for i in range(60)}
    return {"$ref": "#/$defs/0", "title": "chain", "$defs": links | {"60": {"type": "object"}}}


LABORIOUS = {
    "references in allOf": chain(lambda following: {"allOf": [following] * 50}),
    "enums of a oneOf": {"oneOf": [{"enum": [1000 * i + j for j in range(250)]} for i in range(60)]},
    "a pattern through enums": {"type": "string", "pattern": "^(a|aa)*$", "enum": ["a" * i for i in range(1000)]},
    "a pattern through one long text": {"type": "string", "pattern": "^(a|aa)*$", "enum": ["a" * 900_000]},
    "a pattern through names": {
        "type": "object",
        "patternProperties": {"^(a|b)*a(a|b){12}$": {}},
        "properties": {"ab" * i: {} for i in range(400)},
    },
    "long patterns": {"anyOf": [{"pattern": f"[{'abcdefghi' * 200}]{{1,{i + 1}}}"} for i in range(400)]},
}


@pytest.mark.parametrize("schema", LABORIOUS.values(), ids=LABORIOUS)
def test_work_on_a_schema_ends_when_it_was_enough(schema: dict[str, Any]) -> None:
    def convert() -> None:
        with pytest.raises(InvalidSchema, match="takes more than 20 ms of processor time"):
            structured.grammar_of(schema, "schema", LIMITS)

    assert least_seconds(convert, 0.5) < 0.5


def test_the_schemas_of_one_request_share_their_effort() -> None:
    effort = Effort(LIMITS)
    with pytest.raises(InvalidSchema):
        structured.fragment(LABORIOUS["references in allOf"], "first", "a", LIMITS, effort)

    with pytest.raises(InvalidSchema, match=r"second: .* processor time"):
        structured.fragment({"type": "string"}, "second", "b", LIMITS, effort)


def test_many_tools_take_no_longer_than_one() -> None:
    hard = {"type": "object", "properties": {"a": LABORIOUS["enums of a oneOf"]}}
    tools = [(i, {"function": {"name": f"f{i}", "parameters": hard | {"title": str(i)}}}) for i in range(128)]

    def convert() -> None:
        with pytest.raises(InvalidSchema, match="processor time"):
            answer_grammar.call_rules(tools, HERMES, True, "tools[{}]", SchemaLimits())

    assert least_seconds(convert, 2) < 2


def test_long_texts_of_a_schema_are_refused_by_their_size() -> None:
    for schema in ({"description": "x" * 1_000_001}, {"properties": {"x" * 1_000_001: True}}):
        with pytest.raises(InvalidSchema, match="more than 1000000 characters"):
            structured.grammar_of(schema, "schema")


def test_long_names_beside_others_are_told_apart_by_their_beginnings() -> None:
    names = {f"{letter}{'x' * 3000}": {"type": "null"} for letter in "abc"}
    grammar = structured.grammar_of({"type": "object", "properties": names, "additionalProperties": True}, "schema")

    assert len(grammar) < 20_000


def test_a_value_no_float_step_divides_is_compared_all_the_same() -> None:
    with pytest.raises(InvalidSchema, match="allow none of its values"):
        structured.grammar_of({"enum": [1e308], "multipleOf": 7e-5}, "schema")
    assert "1e+308" in structured.grammar_of({"enum": [1e308, 3], "multipleOf": 2}, "schema")


def test_others_run_while_a_schema_is_worked_on() -> None:
    limits = SchemaLimits(seconds=0.1)
    ticks: list[float] = []

    def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            gevent.sleep(0.001)

    ticking = gevent.spawn(tick)
    effort = Effort(limits, Turns().give_way)
    with gevent.Timeout(10), pytest.raises(InvalidSchema, match="takes more than 100 ms"):
        structured.grammar_of(LABORIOUS["references in allOf"], "schema", limits, effort)
    ticking.kill()

    assert len(ticks) > 5


def test_what_others_compute_meanwhile_is_no_effort() -> None:
    limits = SchemaLimits(seconds=0.05)

    def others() -> bool:
        began = time.thread_time()
        while time.thread_time() - began < 0.04:
            pass
        return True

    effort = Effort(limits, others)
    for _ in range(3):
        effort.check("schema")


def test_a_schema_that_is_as_large_as_it_may_be_gives_way_while_it_is_checked() -> None:
    n_looks = 0

    def look() -> bool:
        nonlocal n_looks
        n_looks += 1
        return False

    check({"prefixItems": [{} for _ in range(19_000)]}, "schema", DEFAULT_LIMITS, look)

    assert n_looks > 500


class Holds(Effort):
    """An effort that measures the longest time between two looks at it."""

    def __init__(self) -> None:
        super().__init__()
        garbage_times.watch()  # what is collected here, and how much, depends on the tests before
        self.longest = 0.0
        self._last = thread_seconds()

    def check(self, param: str) -> None:
        self.note()
        super().check(param)

    def note(self) -> None:
        now = thread_seconds()
        self.longest, self._last = max(self.longest, now - self._last), now


def words(n: int, length: int, letters: str = "abcdefghij") -> list[str]:
    """Words that have no beginning in common."""
    chosen = random.Random(n)
    return [f"{number:03}" + "".join(chosen.choices(letters, k=length - 3)) for number in range(n)]


FAR_APART = "".join(chr(0x4E00 + 2 * n) for n in range(1990))  # as many ranges of characters
CONST: dict[str, Any] = {"type": "const_string", "value": "a"}


def ended(content: dict[str, Any], ends: list[str]) -> dict[str, Any]:
    return {"format": {"type": "tag", "begin": "<", "content": content, "end": ends}}


def triggered(triggers: list[str]) -> dict[str, Any]:
    return {"structures": [{"begin": word, "schema": True, "end": "."} for word in triggers], "triggers": triggers}


def nested_triggers() -> dict[str, Any]:
    form = CONST
    for n in range(30):
        tag = {"type": "tag", "begin": "q", "content": form, "end": ">"}
        form = {"type": "triggered_tags", "triggers": [f"{n}-{i}" for i in range(255)] + ["q"], "tags": [tag]}
    return {"format": form}


LABORIOUS_TAGS: dict[str, dict[str, Any]] = {
    "48 kB of triggers": triggered(words(24, 1000)),
    "16 kB of triggers": triggered(words(8, 1000)),
    "excluded words of many letters": {"format": {"type": "any_text", "excludes": words(15, 1000, FAR_APART)}},
    "excluded words with one beginning": {"format": {"type": "any_text", "excludes": [
        "a" * 1020 + end for end in "bcdefghijklmno"]}},
    "excluded words within each other": {"format": {"type": "any_text", "excludes": ["a" * n for n in range(1, 180)]}},
    "ends behind each part": ended({"type": "or", "elements": [
        {"type": "or", "elements": [CONST] * 60}] * 60}, words(100, 500)),
    "free text up to the same ends": ended({"type": "or", "elements": [{"type": "any_text"}] * 256}, words(256, 60)),
    "long texts": {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "\n" * 10**6}] * 9}},
    "long texts in one another": {"format": {"type": "sequence", "elements": [
        {"type": "tag", "begin": "b" * 1024, "content": CONST, "end": "e" * 1024}] * 256}},
    "triggers within triggers": nested_triggers(),
    "large sets": {"format": {"type": "or", "elements": [
        {"type": "regex", "pattern": f"[{FAR_APART[: 1500 + n]}]"} for n in range(200)]}},
    "schemas": {"format": {"type": "or", "elements": [
        {"type": "json_schema", "json_schema": {"enum": [f"{n} {i}" for i in range(999)]}} for n in range(200)]}},
}  # fmt: skip


@pytest.mark.parametrize("tag", LABORIOUS_TAGS.values(), ids=LABORIOUS_TAGS)
def test_work_on_a_structural_tag_is_bounded_and_gives_way(tag: dict[str, Any]) -> None:
    longest = []

    def convert() -> None:
        effort = Holds()

        def of_schema(schema: dict[str, Any] | bool, param: str, prefix: str) -> structured.Rules:
            return structured.fragment(schema, param, prefix, DEFAULT_LIMITS, effort)

        try:
            rules = structured.tag_rules(
                structured.read_tag(tag, "tag"), "tag", "answer", DEFAULT_LIMITS, effort, of_schema
            )
            assert len(structured.grammar(rules.start, rules)) < 2 * DEFAULT_LIMITS.grammar_bytes
            problem = ""
        except (Refused, InvalidSchema) as refusal:
            problem = str(refusal)
        effort.note()
        assert problem == "" or problem.startswith("tag")
        longest.append(effort.longest)

    assert least_seconds(convert, 0.5) < 0.5
    if longest[-1] > HELD:  # other programs stretch processor time, too
        convert()
    assert min(longest) < HELD


def test_the_words_of_a_structural_tag_are_bounded_together() -> None:
    free = {"type": "any_text", "excludes": ["excluded"]}
    tag = ended({"type": "or", "elements": [free, free]}, ["the end"])

    def convert(n_chars: int) -> structured.Rules:
        limits = SchemaLimits(watched_chars=n_chars)
        read = structured.read_tag(tag, "tag")
        return structured.tag_rules(read, "tag", "answer", limits, Effort(limits), lambda *_: structured.Rules(""))

    assert convert(30).bodies
    with pytest.raises(Refused, match=r"elements\[1\]: triggers, ends .* over 29 characters together"):
        convert(29)


@pytest.mark.parametrize("negated", ["", "^"])
def test_a_set_of_many_characters_is_read_in_proportion_to_them(negated: str) -> None:
    def convert() -> None:
        structured.pattern_rules(f"[{negated}{FAR_APART}]", "pattern", "a", DEFAULT_LIMITS)

    assert least_seconds(convert, 0.2) < 0.2  # a hundredth of a second; it was one


def test_long_texts_to_choose_among_are_refused_before_they_are_written() -> None:
    texts = [f"{n}" + "\n" * 20_000 for n in range(1000)]

    def convert() -> None:
        with pytest.raises(Refused, match="choice: its texts have over 65536 characters together"):
            structured.choice_rules(texts, "choice", "a", DEFAULT_LIMITS)

    assert least_seconds(convert, 0.1) < 0.1
