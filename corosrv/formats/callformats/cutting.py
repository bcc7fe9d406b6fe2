"""Cuts texts where two of them begin or end to differ, and never inside a tag."""

from __future__ import annotations

from itertools import takewhile

_PAIRS = (("<", ">"), ("[", "]"))


def shared_start(*texts: str) -> str:
    """Returns what all texts begin with, up to the beginning of a tag that they share a part of."""
    start = _common(*texts)
    for opening, closing in _PAIRS:
        at = start.rfind(opening)
        if at > start.rfind(closing) and any(_is_tag(text[at:], closing) for text in texts):
            start = start[:at]
    return start


def shared_end(*texts: str) -> str:
    """Returns what all texts end with, from the end of a tag that they share a part of."""
    end = _common(*(text[::-1] for text in texts))[::-1]
    closing = end.find(">")
    if closing >= 0 and not 0 <= end.find("<") < closing:
        return end[closing + 1 :]
    return end


def _common(*texts: str) -> str:
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)


def _is_tag(text: str, closing: str) -> bool:
    return 0 < text.find(closing) < 64


def between(text: str, start: str, end: str) -> str:
    """Returns the middle of a text, without these edges."""
    return text[len(start) : len(text) - len(end)]
