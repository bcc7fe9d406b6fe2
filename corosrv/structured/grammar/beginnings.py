"""Finds the rules that a rule may begin with: one that can begin with itself never comes to a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Beginnings:
    """Noted while rules are written, one in the middle of another; looked through at the end."""

    def __init__(self) -> None:
        self._begins_with: dict[str, set[str]] = {}
        self._owner: str | None = None  # the rule at whose beginning we are

    @contextmanager
    def of(self, owner: str | None) -> Iterator[None]:
        """At the beginning of a rule; of none, where something stands before."""
        before, self._owner = self._owner, owner
        try:
            yield
        finally:
            self._owner = before

    def note(self, name: str) -> None:
        """A rule stands here."""
        if self._owner is not None:
            self._begins_with.setdefault(self._owner, set()).add(name)

    def has_circle(self) -> bool:
        """Some rule can begin with itself."""
        done: set[str] = set()
        return any(self._leads_back(start, done) for start in self._begins_with)

    def _leads_back(self, start: str, done: set[str]) -> bool:
        """Follows references without recursion, as long as their chain may be."""
        path = [(start, self._following(start))]
        on_path = {start}
        while path:
            name, following = path[-1]
            after = next(following, None)
            if after is None:
                path.pop()
                on_path.discard(name)
                done.add(name)
            elif after in on_path:
                return True
            elif after not in done:
                path.append((after, self._following(after)))
                on_path.add(after)
        return False

    def _following(self, name: str) -> Iterator[str]:
        return iter(self._begins_with.get(name, ()))
