"""Matches texts against glob patterns, in time that grows with the product of both lengths at worst."""

from __future__ import annotations

MAX_LENGTH = 256  # of a pattern


def check_glob(pattern: str) -> str | None:
    """Returns what is wrong with a pattern, or None. `*` stands for any characters and `?` for one."""
    if len(pattern) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    if "[" in pattern:
        return "has a '[': only * and ? stand for other characters"
    return None


def matches_glob(pattern: str, text: str) -> bool:
    """Returns whether all of the text is what the pattern describes.

    Each piece between two stars is searched from where the piece before it ended, and the first place is the right
    one: nothing is tried twice, so no pattern makes this slow.
    """
    first, *middle = pattern.split("*")
    if not _begins(first, text, 0):
        return False
    if not middle:
        return len(first) == len(text)
    start = len(first)
    last = middle.pop()
    for piece in middle:
        start = _search(piece, text, start)
        if start < 0:
            return False
    end = len(text) - len(last)
    return end >= start and _begins(last, text, end)


def _search(piece: str, text: str, start: int) -> int:
    """Returns the end of the first place from `start` on where the piece is; -1 if there is none."""
    if "?" not in piece:
        place = text.find(piece, start)
        return -1 if place < 0 else place + len(piece)
    for place in range(start, len(text) - len(piece) + 1):
        if _begins(piece, text, place):
            return place + len(piece)
    return -1


def _begins(piece: str, text: str, start: int) -> bool:
    if "?" not in piece:
        return text.startswith(piece, start)
    if start + len(piece) > len(text):
        return False
    return all(mark in ("?", character) for mark, character in zip(piece, text[start:], strict=False))
