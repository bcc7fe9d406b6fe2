"""Reads from an answer how many tokens it has, where it says so."""

from __future__ import annotations

import re

TAIL = 4096  # bytes at the end of an answer in which its usage stands

# As OpenAI, Anthropic and the Responses API have it, and llama-server. Within a text the quotes would be escaped.
_COUNT = re.compile(rb'(?<!\\)"(?:completion_tokens|output_tokens|predicted_n)"[ \t\r\n]*:[ \t\r\n]*([0-9]{1,9})\b')


class UsageReader:
    """Keeps the end of an answer, whatever its form, and finds the count of its tokens there."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        self._tail = piece[-TAIL:] if len(piece) >= TAIL else (self._tail + piece)[-TAIL:]

    def n_tokens(self) -> int | None:
        """Returns the last count that the answer tells; None if it tells none."""
        counts = _COUNT.findall(self._tail)
        return int(counts[-1]) if counts else None
