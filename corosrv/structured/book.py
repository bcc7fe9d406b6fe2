"""The rules of a grammar while it is made: named, counted, and each written once."""

from __future__ import annotations

import re

from corosrv.errors import InvalidSchema
from corosrv.structured.gbnf import SHARED_PREFIX, Rules
from corosrv.structured.limits import Limits

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class RuleBook:
    """Rules under one prefix. What goes over the limits is refused as soon as it does."""

    def __init__(self, prefix: str, param: str, limits: Limits) -> None:
        self._prefix = prefix
        self._param = param
        self._limits = limits
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of each body
        self._n_named = 0
        self._n_bytes = 0

    def shared(self, name: str, body: str) -> str:
        """A rule that is the same in every grammar."""
        name = SHARED_PREFIX + name
        if name not in self._bodies:
            self.define(name, body)
        return name

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        if body not in self._names:
            name = self.reserve()
            self._names[body] = name
            self.define(name, body)
        return self._names[body]

    def reserve(self) -> str:
        """A name whose rule is defined later: rules may need each other."""
        self._n_named += 1
        return f"{self._prefix}-{self._n_named}"

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body
        self._n_bytes += len(name) + len(body.encode()) + len(" ::= \n")
        if self._n_bytes > self._limits.grammar_bytes:
            self._refuse(f"{self._limits.grammar_bytes} bytes")
        if self._n_named > self._limits.rules:
            self._refuse(f"{self._limits.rules} rules")

    def _refuse(self, what: str) -> None:
        raise InvalidSchema("#", f"its grammar takes more than {what}; ask for fewer or simpler values", self._param)

    def rules_from(self, start: str) -> Rules:
        """The rules that are reached from this one, itself first."""
        found: dict[str, str] = {}
        todo = [start]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found[name] = self._bodies[name]
            todo += reversed(_NAME.findall(_QUOTED.sub(" ", self._bodies[name])))
        return Rules(start, found)
