"""Finds the rules that a rule may begin with: one that can begin with itself never comes to a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Beginnings:
    """Collects, while rules are written, which rules each can begin with. Rules are written inside each other."""

    def __init__(self) -> None:
        self._begins_with: dict[str, set[str]] = {}
        self._owner: str | None = None  # the rule at whose beginning we are

    @contextmanager
    def rule_scope(self, owner: str | None) -> Iterator[None]:
        """Notes rules inside this block as beginnings of `owner`; notes none for None: text stands before them."""
        outer, self._owner = self._owner, owner
        try:
            yield
        finally:
            self._owner = outer

    def note(self, name: str) -> None:
        """Notes that a rule is used here."""
        if self._owner is not None:
            self._begins_with.setdefault(self._owner, set()).add(name)

    def has_circle(self) -> bool:
        """Returns whether some rule can begin with itself."""
        circle_free: set[str] = set()
        return any(self._leads_back(start, circle_free) for start in self._begins_with)

    def _leads_back(self, start: str, circle_free: set[str]) -> bool:
        """Follows references without recursion, as long as their chain may be."""
        path = [(start, self._successors(start))]
        on_path = {start}
        while path:
            name, successors = path[-1]
            successor = next(successors, None)
            if successor is None:
                path.pop()
                on_path.discard(name)
                circle_free.add(name)
            elif successor in on_path:
                return True
            elif successor not in circle_free:
                path.append((successor, self._successors(successor)))
                on_path.add(successor)
        return False

    def _successors(self, name: str) -> Iterator[str]:
        return iter(self._begins_with.get(name, ()))
