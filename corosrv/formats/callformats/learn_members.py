"""Learns how a template writes arguments as a row of keys and values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from corosrv.formats.callformats.cutting import shared_end, shared_start
from corosrv.formats.callformats.description import ArgumentRow, Spelling
from corosrv.formats.callformats.probes import KEY, NAME, OTHER_KEY, OTHER_VALUE, VALUE

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
    values = _Values(render, string_start, number_rest)
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


class _Values:
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
