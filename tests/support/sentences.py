"""Texts of a grammar, drawn at random: for grammars as corosrv.formats.structured writes them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z][A-Za-z0-9-]*|\{[0-9,]+\}|[()|?*+])')
_CHAR = re.compile(r"\\x([0-9A-F]{2})|\\u([0-9A-F]{4})|\\U([0-9A-F]{8})|\\(.)|(.)", re.DOTALL)
_ENDLESS = 10**9


@dataclass
class Node:
    """`kind`: text, set, rule, all (one after the other), any (one of them), times."""

    kind: str
    text: str = ""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)
    least: int = 1
    most: int = 1


class Sentences:
    """The texts of one grammar."""

    def __init__(self, grammar: str) -> None:
        rules = (line.split(" ::= ", 1) for line in grammar.splitlines() if line)
        self._rules = {name: _Parser(body).any() for name, body in rules}
        self._size: dict[str, int] = dict.fromkeys(self._rules, _ENDLESS)  # of the shortest text
        while self._shorten():
            pass

    def _shorten(self) -> bool:
        before = dict(self._size)
        for name, node in self._rules.items():
            self._size[name] = self._least(node)
        return before != self._size

    def _least(self, node: Node) -> int:
        if node.kind in ("text", "set"):
            return len(node.text) if node.kind == "text" else 1
        if node.kind == "rule":
            return self._size[node.text]
        sizes = [self._least(inner) for inner in node.inner]
        if node.kind == "any":
            return min(sizes)
        return min(_ENDLESS, sum(sizes) * (node.least if node.kind == "times" else 1))

    def draw(self, chance: random.Random, length: int = 200) -> str:
        """One text. Soon after so many characters it takes the shortest way to an end."""
        found: list[str] = []
        todo = [self._rules["root"]]
        while todo:
            node = todo.pop()
            if node.kind == "text":
                found.append(node.text)
            elif node.kind == "set":
                found.append(_drawn(node.ranges, chance))
            elif node.kind == "rule":
                todo.append(self._rules[node.text])
            elif node.kind == "all":
                todo += reversed(node.inner)
            elif node.kind == "any":
                is_short = len(found) > length
                todo.append(min(node.inner, key=self._least) if is_short else chance.choice(node.inner))
            else:
                todo += node.inner * self._times(node, chance, len(found) > length)
        return "".join(found)

    @staticmethod
    def _times(node: Node, chance: random.Random, is_short: bool) -> int:
        if is_short:
            return node.least
        few = min(node.most, node.least + 3)
        return chance.randint(node.least, node.most if chance.random() < 0.05 else few)


def _drawn(ranges: list[tuple[int, int]], chance: random.Random) -> str:
    return chr(chance.randint(*chance.choice(ranges)))


class _Parser:
    def __init__(self, body: str) -> None:
        self._tokens = self._read(body)
        self._token = next(self._tokens, "")

    @staticmethod
    def _read(body: str) -> Iterator[str]:
        position = 0
        while position < len(body.rstrip()):
            found = _TOKEN.match(body, position)
            assert found, body[position:]
            position = found.end()
            yield found[1]

    def _take(self) -> str:
        token, self._token = self._token, next(self._tokens, "")
        return token

    def any(self) -> Node:
        branches = [self._all()]
        while self._token == "|":
            self._take()
            branches.append(self._all())
        return branches[0] if len(branches) == 1 else Node("any", inner=branches)

    def _all(self) -> Node:
        items = []
        while self._token not in ("", "|", ")"):
            item = self._item()
            while self._token in ("?", "*", "+") or self._token.startswith("{"):
                item = _times(item, self._take())
            items.append(item)
        return Node("all", inner=items)

    def _item(self) -> Node:
        token = self._take()
        if token == "(":
            inside = self.any()
            assert self._take() == ")"
            return inside
        if token.startswith('"'):
            return Node("text", "".join(map(chr, _chars(token[1:-1]))))
        if token.startswith("["):
            return Node("set", ranges=_ranges(token[1:-1]))
        return Node("rule", token)


def _times(item: Node, sign: str) -> Node:
    if sign.startswith("{"):
        least, comma, most = sign[1:-1].partition(",")
        return Node("times", inner=[item], least=int(least), most=int(most) if comma else int(least))
    least, most = {"?": (0, 1), "*": (0, 20), "+": (1, 20)}[sign]
    return Node("times", inner=[item], least=least, most=most)


def _chars(text: str) -> list[int]:
    found = []
    for x, u, long, escaped, plain in _CHAR.findall(text):
        code = x or u or long
        found.append(int(code, 16) if code else ord({"n": "\n", "r": "\r", "t": "\t"}.get(escaped, escaped or plain)))
    return found


def _ranges(text: str) -> list[tuple[int, int]]:
    is_negated = text.startswith("^")
    parts = [match[0] for match in _CHAR.finditer(text[1:] if is_negated else text)]
    found: list[tuple[int, int]] = []
    while parts:
        first = last = _chars(parts.pop(0))[0]
        if len(parts) > 1 and parts[0] == "-":
            parts.pop(0)
            last = _chars(parts.pop(0))[0]
        found.append((first, last))
    return _others(found) if is_negated else found


def _others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What the ranges leave, without halves of surrogate pairs."""
    found, following = [], 0
    for first, last in sorted([*ranges, (0xD800, 0xDFFF)]):
        if following < first:
            found.append((following, first - 1))
        following = max(following, last + 1)
    return [*found, (following, 0x10FFFF)]
