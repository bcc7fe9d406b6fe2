"""Keeps the rules of schemas: clients send the same few again and again."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

from corosrv.formats.structured.grammar.gbnf import Rules

_ENTRIES = 256
_BYTES = 64 * 1024 * 1024


class RulesCache:
    """Keeps the rules that were used last. Any thread may use it."""

    def __init__(self, most_entries: int = _ENTRIES, most_bytes: int = _BYTES) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._rules: OrderedDict[bytes, Rules] = OrderedDict()
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, schema: Any, kind: str, make: Callable[[], Rules]) -> Rules:
        """Returns the rules of a checked schema; makes them if they are not kept. `kind`: what else they depend on."""
        # The order of names counts: it is that of the properties in the answer.
        key = hashlib.sha256(f"{kind}\n{json.dumps(schema)}".encode()).digest()
        with self._lock:
            if key in self._rules:
                self._rules.move_to_end(key)
                return self._rules[key]
        rules = make()  # outside of the lock, for it takes long; two threads may make the same
        with self._lock:
            self._forget(key)
            self._rules[key] = rules
            self._n_bytes += _size(rules)
            while len(self._rules) > self._most_entries or self._n_bytes > self._most_bytes:
                self._forget(next(iter(self._rules)))
        return rules

    def _forget(self, key: bytes) -> None:
        if key in self._rules:
            self._n_bytes -= _size(self._rules.pop(key))


def _size(rules: Rules) -> int:
    return sum(len(name) + len(body) for name, body in rules.bodies.items())
