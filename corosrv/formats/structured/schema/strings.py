"""Converts strings to GBNF between quotes: lengths, patterns and formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from corosrv.formats.structured.gbnf import ANY_CHAR, ESCAPE_RULE, HEX_RULE, NOTHING, QUOTE, either, literal, sequence
from corosrv.formats.structured.pattern_tree import Alternatives, Character, Node, Repeat, Sequence
from corosrv.formats.structured.rule_book import RuleBook

_YEAR = "[1-9][0-9]{3}"
_LEAP_YEAR = (
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26]|1[26])00)"  # 1600 is one, 1700 is none
)
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
_TIME = f"{_CLOCK}(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = f"{_LABEL}(?:\\.{_LABEL}){{0,3}}"

# Formats that are kept to, each as a pattern: not every text of the format, but none that is not of it. Any other
# format is a remark, as JSON Schema has it.
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": "^P(?:[1-9][0-9]{0,3}D(?:T[1-9][0-9]{0,3}[HMS])?|[1-9][0-9]{0,3}[YMW]|T[1-9][0-9]{0,3}[HMS])$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "email": f"^[A-Za-z0-9_+-]{{1,24}}(?:\\.[A-Za-z0-9_+-]{{1,24}}){{0,2}}@{_LABEL}(?:\\.{_LABEL}){{1,3}}$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_OCTET}(?:\\.{_OCTET}){{3}}$",
    "ipv6": "^[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}$",
    "uri": f"^https?://{_HOST}(?:/[A-Za-z0-9._~-]{{0,40}}){{0,8}}(?:\\?[A-Za-z0-9._~=&-]{{1,80}})?$",
}


def of_length(least: int, most: int, book: RuleBook) -> str:
    """Returns the rule for any string of `least` to `most` characters, which all grammars share."""
    content = _any_chars(least, most, book)
    return book.shared(f"string-{least}-{most}", sequence(QUOTE, content, QUOTE))


def chars(most: int, book: RuleBook) -> str:
    """Returns the rule for up to `most` characters inside a string, which all grammars share."""
    return book.shared(f"chars-0-{most}", _any_chars(0, most, book))


def _any_chars(least: int, most: int, book: RuleBook) -> str:
    book.shared("hex", HEX_RULE)
    book.shared("escape", ESCAPE_RULE)
    return book.common.many(ANY_CHAR, least, most)


def of_pattern(node: Node, repeats: int, book: RuleBook) -> str:
    """Returns a rule for strings of the pattern. Optional repetitions end after `repeats` times."""
    return book.rule(sequence(QUOTE, _content(node, repeats, book), QUOTE))


def _content(node: Node, repeats: int, book: RuleBook) -> str:
    if isinstance(node, Character):
        raw, escaped = node.chars.in_json()
        return either([*raw, *([book.rule(" | ".join(escaped))] if len(escaped) > 1 else escaped)])
    if isinstance(node, Sequence):
        return sequence(*_joined(node.items, repeats, book))
    if isinstance(node, Alternatives):
        # In brackets even when all say the same: it may be repeated.
        return f"({' | '.join(dict.fromkeys(_content(branch, repeats, book) or NOTHING for branch in node.branches))})"
    assert isinstance(node, Repeat)
    if node.item.most(repeats) == 0:
        return ""
    content = _content(node.item, repeats, book)
    item = content if isinstance(node.item, (Character, Alternatives)) else f"({content})"
    return book.many(item, node.fewest, node.end(repeats))


def _joined(items: Iterable[Node], repeats: int, book: RuleBook) -> Iterator[str]:
    """Yields GBNF for each item; joins plain characters in a row into one literal."""
    for are_plain, group in groupby(items, lambda item: isinstance(item, Character) and item.chars.is_plain):
        if are_plain:
            yield literal("".join(item.chars.single for item in group if isinstance(item, Character)))
        else:
            yield from (_content(item, repeats, book) for item in group)
