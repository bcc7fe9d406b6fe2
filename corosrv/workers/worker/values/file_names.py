"""Names of files that others chose, made safe: one part of a path, of a bounded length, that hides nothing."""

from __future__ import annotations

import os
import unicodedata

MAX_NAME = 200  # bytes; file systems take 255, and a number may be added
_MAX_ENDING = 20


def file_name(original: str) -> str:
    """Makes a name safe: never empty, `.` or `..`, without `/` or control characters, and not too long."""
    name = "".join("_" if char == "/" or unicodedata.category(char) in ("Cc", "Cs") else char for char in original)
    if not name.strip(". "):
        return "file"
    stem, ending = os.path.splitext(name)
    if len(ending.encode()) > _MAX_ENDING:
        stem, ending = name, ""
    room = MAX_NAME - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore") + ending
