"""GBNF as text: literals, character sets, repetitions, and rules that are shared.

Inside a JSON string most characters stand for themselves, and some are escaped; `json_literal` and `Chars` see to that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_CODE_POINT = 0x10FFFF
NOTHING = '""'
QUOTE = '"\\""'

# Code points, both ends included.
Range = tuple[int, int]

# The backslash first: the others bring new ones.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\x00"}


def literal(text: str) -> str:
    """Writes a text as GBNF that matches it alone."""
    for letter, escape in _ESCAPES.items():
        text = text.replace(letter, escape)  # many times faster for long texts than translate()
    return f'"{text}"'


def json_literal(value: Any, suffix: str = "") -> str:
    """Writes a JSON value, followed by the text `suffix`, as GBNF that matches it alone.

    Raises ValueError for what JSON cannot hold: half a surrogate pair, infinity.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return literal(text + suffix)


def char_set(ranges: Iterable[Range], is_negated: bool = False) -> str:
    """Writes a set: one character of these ranges, or of all others."""
    content = "".join(_char(first) if first == last else f"{_char(first)}-{_char(last)}" for first, last in ranges)
    return f"[{'^' if is_negated else ''}{content}]"


def _char(code_point: int) -> str:
    char = chr(code_point)
    if char.isascii() and char.isprintable() and char not in "[]\\^-":
        return char
    if code_point < 0x100:
        return f"\\x{code_point:02X}"
    return f"\\u{code_point:04X}" if code_point < 0x10000 else f"\\U{code_point:08X}"


def either(alternatives: Iterable[str]) -> str:
    """Writes alternatives as one item."""
    distinct = list(dict.fromkeys(alternatives))
    return distinct[0] if len(distinct) == 1 else f"({' | '.join(distinct)})"


def repeated(item: str, least: int, most: int) -> str:
    """Writes an item `least` to `most` times, in one line; nothing for none."""
    if most == 0:
        return ""
    if (least, most) == (1, 1):
        return item
    return f"{item}{{{least}}}" if least == most else f"{item}{{{least},{most}}}"


def sequence(*items: str) -> str:
    return " ".join(item for item in items if item)


# Rules that mean the same in every grammar, and so are there once however many schemas it is made of.
SHARED_PREFIX = "json-"


@dataclass(frozen=True, slots=True)
class Rules:
    """GBNF without a root: `start` names the rule that everything begins with.

    The rules of several schemas fit into one grammar when each was made with a prefix of its own; those that begin
    with `json-` are the same in all of them.
    """

    start: str
    bodies: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        return (f"{name} ::= {body}" for name, body in self.bodies.items())


def grammar(root: str, *parts: Rules) -> str:
    """Writes a whole grammar: `root` is the right side of its first rule, and may use the rules of the parts."""
    bodies: dict[str, str] = {}
    for part in parts:
        bodies.update(part.bodies)
    return "\n".join((f"root ::= {root}", *Rules("root", bodies).lines(), ""))


_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


@dataclass(frozen=True, slots=True)
class Chars:
    """A set of characters: ranges in ascending order that do not touch. No halves of surrogate pairs."""

    ranges: tuple[Range, ...]

    @classmethod
    def from_ranges(cls, ranges: Iterable[Range]) -> Chars:
        merged: list[Range] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def __invert__(self) -> Chars:
        gaps, start = [], 0
        for first, last in self.ranges:
            if start < first:
                gaps.append((start, first - 1))
            start = last + 1
        if start <= MOST_CODE_POINT:
            gaps.append((start, MOST_CODE_POINT))
        return Chars(tuple(gaps))

    def __and__(self, other: Chars) -> Chars:
        return ~Chars.from_ranges((~self).ranges + (~other).ranges)

    def __or__(self, other: Chars) -> Chars:
        return Chars.from_ranges(self.ranges + other.ranges)

    def __contains__(self, code_point: int) -> bool:
        return any(first <= code_point <= last for first, last in self.ranges)

    @property
    def single(self) -> str:
        """The character, if there is but one."""
        is_one = len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]
        return chr(self.ranges[0][0]) if is_one else ""

    @property
    def is_plain(self) -> bool:
        """Returns whether this is a single character that stands for itself."""
        return bool(self.single) and ord(self.single) in RAW

    def in_json(self) -> tuple[list[str], list[str]]:
        """Returns alternatives for one of these characters inside a JSON string: as it is, and escaped."""
        if self.is_plain:
            return [literal(self.single)], []
        raw = self & RAW
        escaped = [literal(f"\\{chr(code)}") for code in (_QUOTE, _BACKSLASH) if code in self]
        escaped += [literal(f"\\{letter}") for code, letter in _SHORT_ESCAPES.items() if code in self]
        controls = (self & CONTROLS).ranges
        for high in (0, 1):
            low = [(first % 16, last % 16) for first, last in _clip(controls, high * 16, high * 16 + 15)]
            if low:
                digits = "".join("0123456789abcdef"[code] for first, last in low for code in range(first, last + 1))
                escaped.append(sequence(literal(f"\\u00{high}"), f"[{digits}]"))
        return [char_set(raw.ranges)] if raw.ranges else [], escaped


def _clip(ranges: Iterable[Range], least: int, most: int) -> list[Range]:
    return [(max(first, least), min(last, most)) for first, last in ranges if first <= most and last >= least]


SURROGATES = Chars(((0xD800, 0xDFFF),))
# Control characters without a short escape.
CONTROLS = ~Chars.from_ranges([(0x20, MOST_CODE_POINT), *((code, code) for code in _SHORT_ESCAPES)])
# Characters that stand for themselves.
RAW = ~Chars.from_ranges([(0, 0x1F), (_QUOTE, _QUOTE), (_BACKSLASH, _BACKSLASH), *SURROGATES.ranges])
ANY = ~SURROGATES

# Any character of a string whatever, in all ways that JSON has to write it, one that takes two \u escapes excepted.
ANY_CHAR = '([^"\\\\\\x00-\\x1F] | "\\\\" json-escape)'
ESCAPE_RULE = r"""["\\/bfnrt] | "u" ([0-9A-CE-Fa-ce-f] json-hex{3} | [dD] [0-7] json-hex{2})"""
HEX_RULE = "[0-9A-Fa-f]"
