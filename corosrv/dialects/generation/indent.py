"""Finds the end of a text that fills a gap in an indented block."""

from __future__ import annotations


class Indent:
    """Ends a text at the first line that is indented by less than `least`, as llama-server does.

    Spaces and tabs count alike. The first line has no say: it goes on with one that stands before the gap.
    """

    def __init__(self, least: int) -> None:
        self.is_over = False
        self._least = least
        self._so_far: int | None = None  # of the line that has begun, while it has nothing else

    def take(self, text: str) -> str:
        """Returns the part of the next piece that still belongs to the text."""
        if self.is_over:
            return ""
        for place, character in enumerate(text):
            if self._so_far is not None:
                if character in " \t":
                    self._so_far += 1
                    continue
                if self._so_far < self._least:
                    self.is_over = True
                    return text[:place]
            self._so_far = 0 if character == "\n" else None
        return text
