"""Writes keys of properties that the schema does not name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from corosrv.formats.structured.grammar.chars import RAW, Chars
from corosrv.formats.structured.grammar.gbnf import NOTHING, QUOTE, literal, sequence
from corosrv.formats.structured.grammar.rule_book import RuleBook
from corosrv.formats.structured.schema import strings

_MOST_NODES = 300  # of the tree of names, each of which is a rule


def other_than(names: Collection[str], most: int, book: RuleBook) -> str:
    """Returns GBNF for a key of about `most` characters at most that is none of these names, however they are escaped.

    Along the beginnings of names no escapes are used, so that a text is a name only if it looks like one. Where the
    names have too many beginnings to follow, a key differs from all of them in its first character.
    """
    tree = _tree(names)
    if tree is None:
        tree = {name[0]: {"": True} for name in names if name}
    return sequence(QUOTE, _unlike(tree, strings.chars(most, book), book), QUOTE)


def _tree(names: Iterable[str]) -> dict[str, object] | None:
    """Arranges the names by their characters; returns None where that would be too many rules."""
    tree: dict[str, object] = {}
    n_nodes = 0
    for name in names:
        node = tree
        for char in name:
            n_nodes += char not in node
            if n_nodes > _MOST_NODES:
                return None
            node = node.setdefault(char, {})  # type: ignore[assignment]
        node[""] = True
    return tree


def _unlike(tree: dict[str, object], following: str, book: RuleBook) -> str:
    """Returns the rule for keys that leave the tree somewhere; `following`: the characters after that place."""
    # From the leaves up, because names may be long.
    order = [tree]
    for node in order:
        order += (inner for inner in node.values() if isinstance(inner, dict))
    rules: dict[int, str | None] = {}
    for node in reversed(order):
        chars = [char for char in node if char and ord(char) in RAW]
        other_chars = RAW & ~Chars.from_ranges((ord(char), ord(char)) for char in chars)
        alternatives = [sequence(*other_chars.in_json()[0], following)] if other_chars.ranges else []
        alternatives += [sequence(literal(char), inner) for char in chars if (inner := rules[id(node[char])])]
        if "" not in node and node is not tree:
            alternatives.append(NOTHING)
        rules[id(node)] = book.rule(" | ".join(alternatives)) if alternatives else None
    return rules[id(tree)] or NOTHING
