"""Learns from a chat template how its model writes calls, by rendering calls that differ in one thing.

Arguments may be JSON, or a row of keys and values with texts of their own around them, which `learn_members` finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from corosrv.formats.callformats.description import (
    AnswerFormat,
    ArgumentRow,
    CallField,
    CallFormat,
    Notation,
    Spelling,
    between,
    shared_end,
    shared_start,
    with_markers,
)
from corosrv.formats.callformats.learn_answer import (
    KEY,
    MANNERS,
    NAME,
    OTHER_KEY,
    OTHER_NAME,
    OTHER_VALUE,
    VALUE,
    Manner,
    Probe,
)

# Returns the text of one call with these arguments, from a fixed text before its name to one behind it.
CallRendering = Callable[[dict[str, Any]], str]

_NUMBER = 73519
_SAMPLES: dict[str, Any] = {
    "number": _NUMBER,
    "boolean": True,
    "null": None,
    "object": {"nedin": [1, "nedx"]},
    "array": [1, {"nedin": "nedx"}],
}


def learn_members(render: CallRendering) -> ArgumentRow | None:
    """Returns how arguments are written; None where they are no row of members."""
    lone, number = render({KEY: VALUE}), render({KEY: _NUMBER})
    if KEY not in lone or VALUE not in lone or KEY not in number or str(_NUMBER) not in number:
        return None
    string_start, _, string_rest = _after_key(lone).partition(VALUE)
    number_start, _, number_rest = _after_key(number).partition(str(_NUMBER))
    quote = string_start.removeprefix(number_start)
    if not quote or quote == string_start or string_rest != quote + number_rest:
        quote = ""
    string_start, string_rest = string_start[: len(string_start) - len(quote)], string_rest[len(quote) :]
    values = _ValueForms(render, string_start, number_rest)
    if number_rest != string_rest or not values.are_known:
        return None
    joint, sorts_keys = _joint(render, len(quote))
    value_end = "" if quote else shared_start(joint, string_rest).rstrip()
    opening, closing, is_bare = _edges(lone, render({}), string_rest)
    closing = closing.removeprefix(value_end)
    if not (value_end or quote) or not is_bare or closing.strip():
        return None
    return ArgumentRow(
        opening, values.key_end, values.value_start, value_end, joint[len(value_end) :], closing,
        values.type_words, quote, values.constants, values.containers, sorts_keys,
    )  # fmt: skip


def _after_key(call: str) -> str:
    return call[call.find(KEY) + len(KEY) :]


def _joint(render: CallRendering, n_quote: int) -> tuple[str, bool]:
    """Returns what stands between two arguments, and whether these are sorted by their keys."""
    call = render({KEY: VALUE, OTHER_KEY: OTHER_VALUE})
    first = call.find(VALUE), call.find(OTHER_VALUE)
    if min(first) < 0:
        return "", False
    sorts_keys = first[1] < first[0]
    value, key = (OTHER_VALUE, KEY) if sorts_keys else (VALUE, OTHER_KEY)
    rest = call[call.find(value) + len(value) + n_quote :]
    return rest[: max(rest.find(key), 0)], sorts_keys


def _edges(lone: str, empty: str, string_rest: str) -> tuple[str, str, bool]:
    """Returns what stands before the first key and behind the last value, and whether nothing stands for no arguments.

    What calls without arguments have as well belongs to the call.
    """
    before = lone[: lone.find(KEY)]
    before = before[before.rfind(NAME) + len(NAME) :]
    if NAME not in empty:
        return before, "", True
    without = empty[empty.rfind(NAME) + len(NAME) :]
    lead = shared_start(before, without)
    trail = shared_end(string_rest, without[len(lead) :])
    closing = string_rest[: len(string_rest) - len(trail)]
    return before[len(lead) :], closing, len(without) == len(lead) + len(trail)


class _ValueForms:
    """Finds how values of each type are written, and what stands between keys and them."""

    def __init__(self, render: CallRendering, string_start: str, after_value: str) -> None:
        """`string_start`: from a key to its value, if that is a string; `after_value`: behind a value."""
        self._starts = {"string": string_start}
        self._spellings: dict[str, Spelling] = {}
        for json_type, sample in _SAMPLES.items():
            self._look_at(json_type, sample, _after_key(render({KEY: sample})), after_value)
        # There are templates that cannot write null, and say so.
        self.are_known = self._spellings.keys() >= _SAMPLES.keys() - {"null"}
        self.key_end, self.value_start = string_start, ""
        self.type_words: tuple[tuple[str, str], ...] = ()
        if len(set(self._starts.values())) > 1:
            self._find_words()

    def _look_at(self, json_type: str, sample: Any, text: str, after_value: str) -> None:
        if not text.endswith(after_value):
            return
        text = text[: len(text) - len(after_value)]
        for spelling, value in ((Spelling.JSON, json.dumps(sample)), (Spelling.PYTHON, str(sample))):
            if text.endswith(value):
                self._starts[json_type], self._spellings[json_type] = text[: len(text) - len(value)], spelling
                return

    def _find_words(self) -> None:
        """Finds the words in which the texts before values differ by type: they stand between quotes."""
        starts = list(self._starts.values())
        shared = shared_start(*starts)
        self.key_end = shared[: shared.rfind('"') + 1]
        self.value_start = starts[0][starts[0].find('"', len(self.key_end)) :]
        self.are_known = self.are_known and bool(self.key_end) and all(s.endswith(self.value_start) for s in starts)
        self.type_words = tuple(
            (name, start[len(self.key_end) : len(start) - len(self.value_start)])
            for name, start in self._starts.items()
        )

    @property
    def constants(self) -> Spelling:
        return self._spellings.get("boolean", Spelling.JSON)

    @property
    def containers(self) -> Spelling:
        is_python = Spelling.PYTHON in (self._spellings.get("object"), self._spellings.get("array"))
        return Spelling.PYTHON if is_python else Spelling.JSON


_MOST_ENDING = 64  # characters
_MOST_MARKUP = 1_024  # characters of all texts of a format
_JSON = re.compile(rf'\{{\s*"{KEY}": ?"(?:{VALUE}|{OTHER_VALUE})"\s*\}}')
_NOTATION = re.compile(rf"\{{{KEY}:(\W+)(?:{VALUE}|{OTHER_VALUE})\1\}}")
_IDENTIFIER = re.compile(rf"{NAME}|{OTHER_NAME}|(?:call_)?nedcallz[12]")


class _CallPiece(NamedTuple):
    field: CallField
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Learnt:
    """A format, and the manner in which the template takes calls."""

    form: CallFormat | None  # None: calls are shown, in no way that can be described
    manner: Manner


def learn_calls(probe: Probe, answer: AnswerFormat, end_texts: Iterable[str]) -> Learnt | None:
    """Returns what a template makes of calls; None where it shows none.

    `answer`: what it makes of texts and thoughts; `end_texts`: of tokens that end an answer, which are no part of it.
    """
    for manner in MANNERS:
        single = probe.calls(manner, (NAME, {KEY: VALUE}))
        if NAME in single and KEY in single and VALUE in single:
            text = probe.text(manner)
            learner = _Learner(probe, manner, answer, tuple(end_texts), text, single)
            return Learnt(learner.learn() if text else None, manner)
    return None


class _Learner:
    def __init__(
        self, probe: Probe, manner: Manner, answer: AnswerFormat, end_texts: tuple[str, ...], text: str, single: str
    ) -> None:
        self._probe = probe
        self._manner = manner
        self._answer = answer
        self._end_texts = end_texts
        self._head = shared_start(text, single)  # the conversation before the calls
        prompt = probe.prompt()
        if single.startswith(prompt) and single[len(self._head) :].startswith(NAME):
            self._head = prompt
        self._tail = shared_end(text, single)  # and behind them
        self._single = self._calls(single)
        # Of the tail, what the model writes before it ends.
        self._ending = self._before_end(self._tail[:_MOST_ENDING]) or ""

    def learn(self) -> CallFormat | None:
        arguments, form = self._arguments()
        if form is None:
            return None
        pieces, texts = _split(self._single, arguments)
        if CallField.NAME not in [piece.field for piece in pieces]:
            return None
        form = replace(form, start=texts[0], end=texts[-1], inner=tuple(texts[1:-1]),
                       fields=tuple(piece.field for piece in pieces))  # fmt: skip
        form = self._clean(self._with_joint(form))
        return form if len(form.texts) <= _MOST_MARKUP else None

    def _calls(self, rendered: str) -> str:
        return between(rendered, self._head, self._tail)

    def _arguments(self) -> tuple[tuple[int, int], CallFormat | None]:
        """Returns where the arguments are, and a format that knows how they are written."""
        form = CallFormat("", "", "", short_ids=self._manner.short_ids)
        if match := _JSON.search(self._single):
            return match.span(), form
        if match := _NOTATION.search(self._single):
            return match.span(), replace(form, arguments=Notation(match[1], sorts_keys=self._sorts_keys()))
        members = learn_members(lambda arguments: self._calls(self._probe.calls(self._manner, (NAME, arguments))))
        if members is None:
            return (0, 0), None
        span = self._single.find(members.opening + KEY), _end_of(self._single, members)
        return span, replace(form, arguments=members)

    def _sorts_keys(self) -> bool:
        both = self._calls(self._probe.calls(self._manner, (NAME, {"nedz": 1, "nedb": 2})))
        return "nedz" in both and both.find("nedb") < both.find("nedz")

    def _with_joint(self, form: CallFormat) -> CallFormat:
        """Adds what stands between two calls, and their numbers where they are told."""
        rendered = self._probe.calls(self._manner, (NAME, {KEY: VALUE}), (OTHER_NAME, {KEY: OTHER_VALUE}))
        if OTHER_NAME not in rendered or OTHER_VALUE not in rendered or NAME not in rendered[len(self._head) :]:
            return form
        double = self._calls(rendered)
        spans = _argument_spans(double, form)
        if len(spans) != 2:
            return form
        n_fields = len(form.fields)
        pieces, texts = _split(double, *spans)
        if tuple(piece.field for piece in pieces) != form.fields * 2:
            return form
        after = self._before_end(texts[-1]) or texts[-1]
        trailer = after[len(form.end) :] if after.startswith(form.end) and self._before_end(form.end) is None else ""
        form = replace(form, joint=texts[n_fields], trailer=trailer.strip())
        return _with_index(form, tuple(texts[n_fields + 1 : -1]))

    def _clean(self, form: CallFormat) -> CallFormat:
        """Removes from the edges what is no part of the calls."""
        start = self._without_thoughts(form.start)
        closing = shared_start(start, self._answer.text_closing)
        lead_in, start = start[: len(start) - len(start[len(closing) :].lstrip())], start[len(closing) :].lstrip()
        ended = self._before_end(form.end)
        end, trailer = (form.end + self._ending if ended is None else ended).rstrip(), form.trailer
        if form.joint and start and form.joint.endswith(start):
            last = form.joint.removesuffix(start).rstrip()
            if end.startswith(last):
                end, trailer = last, end[len(last) :] or trailer
        form = replace(form, start=start, end=end, trailer=trailer, lead_ins=(lead_in,) if lead_in else ())
        return with_markers(form) if start else form

    def _before_end(self, text: str) -> str | None:
        """Returns a text up to the token that ends an answer; None where there is none."""
        ends = [at for word in self._end_texts if word and (at := text.find(word)) >= 0]
        return text[: min(ends)] if ends else None

    def _without_thoughts(self, start: str) -> str:
        if self._answer.thought_tags is not None:
            opening, closing = self._answer.thought_tags
            before, tag, rest = start.partition(closing)
            if tag and not before.replace(opening, "").strip():
                start = rest
        return start


def _end_of(single: str, members: ArgumentRow) -> int:
    """Returns the end of the arguments of the probe, which has one of them."""
    value = single.find(VALUE) + len(VALUE) + len(members.quote)
    return value + len(members.value_end) + len(members.closing)


def _argument_spans(calls: str, form: CallFormat) -> list[tuple[int, int]]:
    if form.arguments is None:
        return [match.span() for match in _JSON.finditer(calls)]
    if isinstance(form.arguments, Notation):
        return [match.span() for match in _NOTATION.finditer(calls)]
    members, spans = form.arguments, []
    assert isinstance(members, ArgumentRow)  # elements are not learnt
    for value in (VALUE, OTHER_VALUE):
        at = calls.find(value)
        begin = calls.rfind(members.opening + KEY, 0, at)
        if begin >= 0:
            spans.append((begin, at + len(value + members.quote + members.value_end + members.closing)))
    return spans


def _split(calls: str, *arguments: tuple[int, int]) -> tuple[list[_CallPiece], list[str]]:
    """Returns the fields in a text of calls, and the texts before, between and behind them."""
    pieces = [_CallPiece(CallField.ARGUMENTS, *span) for span in arguments]
    for match in _IDENTIFIER.finditer(calls):
        if not any(begin <= match.start() < end for begin, end in arguments):
            field = CallField.NAME if match[0] in (NAME, OTHER_NAME) else CallField.ID
            pieces.append(_CallPiece(field, *match.span()))
    pieces.sort(key=lambda piece: piece.begin)
    edges = [0, *(edge for piece in pieces for edge in (piece.begin, piece.end)), len(calls)]
    return pieces, [calls[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _with_index(form: CallFormat, inner: tuple[str, ...]) -> CallFormat:
    """Adds the number of a call where the first and the second call differ in it. `inner`: of the second call."""
    for at, (first, second) in enumerate(zip(form.inner, inner, strict=True)):
        if (cut := _number_in(first, second)) is not None:
            before, after, index = cut
            texts = (*form.inner[:at], before, after, *form.inner[at + 1 :])
            fields = (*form.fields[: at + 1], CallField.INDEX, *form.fields[at + 1 :])
            return replace(form, inner=texts, fields=fields, first_index=index)
    end = shared_end(form.start, form.joint)
    cut = _number_in(form.start[-len(end) - 1 :], form.joint[-len(end) - 1 :])
    if cut is None:
        return form
    size = len(end) + 1
    return replace(
        form, start=form.start[:-size], joint=form.joint[:-size], inner=(end, *form.inner),
        fields=(CallField.INDEX, *form.fields), first_index=cut[2],
    )  # fmt: skip


def _number_in(first: str, second: str) -> tuple[str, str, int] | None:
    """Returns the texts around a number in two texts that is one more in the second, and the number in the first."""
    for match in re.finditer(r"[01]", first):
        before, after, index = first[: match.start()], first[match.end() :], int(match[0])
        if second == f"{before}{index + 1}{after}":
            return before, after, index
    return None
