"""Finds the rules of a grammar that come to an end: those with some text of finite length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_TOKEN = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z][A-Za-z0-9-]*)'
    r"|(?P<optional>[?*]|\{0(?:,\d*)?\})|(?P<repeated>\+|\{\d+(?:,\d*)?\})|(?P<sign>[()|])"
)


def endless(bodies: Mapping[str, str]) -> set[str]:
    """Returns the names of the rules without a finite text: each of their alternatives uses such a rule again."""
    tokens = {name: list(_TOKEN.finditer(body)) for name, body in bodies.items()}
    users: dict[str, set[str]] = {}
    for name, rule_tokens in tokens.items():
        for token in rule_tokens:
            if token.lastgroup == "name":
                users.setdefault(token.group(), set()).add(name)
    ending: set[str] = set()
    todo = list(tokens)
    while todo:
        name = todo.pop()
        if name not in ending and _ends(iter(tokens[name]), ending):
            ending.add(name)
            todo += users.get(name, ())
    return set(tokens) - ending


def _ends(tokens: Iterator[re.Match[str]], ending: set[str]) -> bool:
    """Returns whether the tokens up to the next closing bracket, or the end, have a text of `ending` rules alone."""
    some_alternative = False
    items: list[bool] = []
    for token in tokens:
        sign = token.group()
        if token.lastgroup == "optional":
            items[-1] = True
        elif sign == "(":
            items.append(_ends(tokens, ending))
        elif sign == ")":
            break
        elif sign == "|":
            some_alternative, items = some_alternative or all(items), []
        elif token.lastgroup != "repeated":
            items.append(token.lastgroup == "text" or sign in ending)
    return some_alternative or all(items)
