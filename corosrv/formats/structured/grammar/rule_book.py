"""Collects the rules of a grammar while it is made: named, counted, and each written once."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod

from corosrv.base.errors import InvalidSchema
from corosrv.formats.structured.grammar.ending import endless
from corosrv.formats.structured.grammar.gbnf import SHARED_PREFIX, Rules, repeated, sequence
from corosrv.formats.structured.limits import SchemaLimits

CHUNK = 32
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class Namer(ABC):
    """Gives rules their names."""

    @abstractmethod
    def rule(self, body: str) -> str:
        """Returns the name of a rule with this body."""

    def many(self, item: str, least: int, most: int) -> str:
        """Writes an item `least` to `most` times. Large counts use rules for chunks, which keep the grammar small."""
        if most <= 2 * CHUNK:
            return repeated(item, least, most)
        chunk = self.rule(f"{item}{{{CHUNK}}}")
        sure = sequence(repeated(chunk, least // CHUNK, least // CHUNK), repeated(item, least % CHUNK, least % CHUNK))
        n_optional = most - least
        if n_optional <= 2 * CHUNK:
            return sequence(sure, repeated(item, 0, n_optional))
        single = CHUNK - 1 + (n_optional - CHUNK + 1) % CHUNK
        return sequence(sure, repeated(chunk, 0, (n_optional - single) // CHUNK), repeated(item, 0, single))


class RuleBook(Namer):
    """Rules under one prefix. Raises InvalidSchema as soon as they exceed a limit."""

    def __init__(self, prefix: str, param: str, limits: SchemaLimits) -> None:
        self._prefix = prefix
        self._param = param
        self._limits = limits
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of each body
        self._n_named = 0
        self._n_bytes = 0

    def shared(self, name: str, body: str) -> str:
        """Defines a rule that is the same in every grammar. Returns its full name."""
        name = SHARED_PREFIX + name
        if name not in self._bodies:
            self.define(name, body)
        return name

    @property
    def common(self) -> CommonRules:
        """Returns a namer of rules that are the same in every grammar: named by their bodies."""
        return CommonRules(self)

    def rule(self, body: str) -> str:
        """Returns the name of a rule with this body."""
        if body not in self._names:
            name = self.reserve()
            self._names[body] = name
            self.define(name, body)
        return self._names[body]

    def reserve(self) -> str:
        """Returns a name whose rule is defined later: rules may need each other."""
        self._n_named += 1
        return f"{self._prefix}-{self._n_named}"

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body
        self._n_bytes += len(name) + len(body.encode()) + len(" ::= \n")
        if self._n_bytes > self._limits.grammar_bytes:
            self._refuse(f"{self._limits.grammar_bytes} bytes")
        if self._n_named > self._limits.rules:
            self._refuse(f"{self._limits.rules} rules")

    def _refuse(self, limit: str) -> None:
        problem = f"takes more than {limit} once it is compiled; ask for fewer or simpler values"
        raise InvalidSchema("#", problem, self._param)

    def endless(self) -> set[str]:
        """Returns the rules that have no finite text."""
        return endless(self._bodies)

    def rules_from(self, start: str) -> Rules:
        """Returns the rules that are reached from this one, itself first."""
        bodies: dict[str, str] = {}
        todo = [start]
        while todo:
            name = todo.pop()
            if name in bodies:
                continue
            bodies[name] = self._bodies[name]
            todo += reversed(_NAME.findall(_QUOTED.sub(" ", self._bodies[name])))
        return Rules(start, bodies)


class CommonRules(Namer):
    """A book's rules that do not carry its prefix."""

    def __init__(self, book: RuleBook) -> None:
        self._book = book

    def rule(self, body: str) -> str:
        # Named by what it says: two grammars have the same rule, or two rules.
        return self._book.shared(hashlib.sha256(body.encode()).hexdigest()[:12], body)
