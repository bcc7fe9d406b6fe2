"""Keys of properties that have no name in the schema."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from corosrv.structured.grammar.chars import RAW, Chars
from corosrv.structured.grammar.gbnf import NOTHING, QUOTE, literal, sequence
from corosrv.structured.grammar.rule_book import RuleBook
from corosrv.structured.schema import strings

_MOST_NODES = 300  # of the tree of names, each of which is a rule


def other_than(names: Collection[str], most: int, book: RuleBook) -> str:
    """A key that is none of these names, in whatever way they may be written, of about `most` characters at most.

    Along the beginnings of names no escapes are used, so that a text is a name only if it looks like one. Where the
    names have too many beginnings to follow, a key differs from all of them in its first character.
    """
    tree = _tree(names)
    if tree is None:
        tree = {name[0]: {"": True} for name in names if name}
    return sequence(QUOTE, _unlike(tree, strings.chars(most, book), book), QUOTE)


def _tree(names: Iterable[str]) -> dict[str, object] | None:
    """The names by their characters; None where that would be too many rules."""
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


def _unlike(tree: dict[str, object], rest: str, book: RuleBook) -> str:
    """The rule for what may follow at this place in the tree, which is not nothing."""
    # From the leaves up, because names may be long.
    order = [tree]
    for node in order:
        order += (inner for inner in node.values() if isinstance(inner, dict))
    rules: dict[int, str | None] = {}
    for node in reversed(order):
        chars = [char for char in node if char and ord(char) in RAW]
        others = RAW & ~Chars.of((ord(char), ord(char)) for char in chars)
        found = [sequence(*others.in_json()[0], rest)] if others.ranges else []
        found += [sequence(literal(char), inner) for char in chars if (inner := rules[id(node[char])])]
        if "" not in node and node is not tree:
            found.append(NOTHING)
        rules[id(node)] = book.rule(" | ".join(found)) if found else None
    return rules[id(tree)] or NOTHING
