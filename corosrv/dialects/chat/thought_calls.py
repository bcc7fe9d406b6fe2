"""Finds calls that a model begins in its thoughts, without ending these first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corosrv.dialects.chat.call_patterns import any_may_follow, first_match
from corosrv.dialects.chat.patterns import Pattern, first_of, partial_match_at

# Beginnings of texts that are control tokens in the vocabularies of nearly all models: nobody quotes them.
_CONTROL = ("<|", "<｜")  # noqa: RUF001  # DeepSeek has bars of its own


def is_control(tag: str) -> bool:
    """Tells whether a tag is spelled as control tokens are: "<|...>" or "<...|>"."""
    return tag.startswith(_CONTROL) or (tag.startswith("<") and tag.endswith("|>"))


class ThoughtCalls:
    """Finds the first call in thoughts whose head is whole and whose marker is spelled as control tokens are.

    A model whose prompt has opened its thoughts may not know that it thinks: its calls also count at the beginning of
    a line. Thoughts that speak of calls otherwise stay thoughts.
    """

    def __init__(self, markers: Iterable[str], heads: Sequence[Pattern], most_held: int, is_opened: bool) -> None:
        """`most_held`: characters that a head may have; `is_opened`: the prompt has opened the thoughts."""
        self.markers = tuple(marker for marker in markers if marker[0] in "<[")
        self._heads = heads
        self._most_held = most_held
        self._is_opened = is_opened

    def find(self, text: str, is_begin: bool, is_last: bool) -> tuple[int, bool]:
        """Returns (position, True) of a call; else where something starts that may become one, and False.

        `is_begin`: the thoughts begin with this text; `is_last`: no more of them follows.
        """
        at = 0
        while True:
            n, marker = first_of(text[at:], self.markers)
            if n < 0:
                return len(text) if is_last else at + partial_match_at(text[at:], self.markers), False
            at += n
            if self._may_begin(text[:at], marker, is_begin):
                head = first_match(self._heads, text[at:])
                if head is not None and head.end() <= self._most_held:
                    return at, True
                if not is_last and len(text) - at <= self._most_held and any_may_follow(self._heads, text[at:]):
                    return at, False
            at += 1

    def _may_begin(self, before: str, marker: str, is_begin: bool) -> bool:
        line = before.rstrip(" \t")
        return is_control(marker) or (self._is_opened and (line.endswith("\n") or (is_begin and not line)))
