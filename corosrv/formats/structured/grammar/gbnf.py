"""GBNF as text: literals, character sets, repetitions, and rules that are shared."""

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
