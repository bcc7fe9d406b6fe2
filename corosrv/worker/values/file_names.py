"""Names of files that others chose, made safe: one part of a path, of a bounded length, that hides nothing."""

from __future__ import annotations

import os
import unicodedata

MAX_NAME = 200  # bytes; file systems take 255, and a number may be added
_MAX_ENDING = 20


def file_name(wanted: str) -> str:
    """`wanted` where it is harmless, else what is left of it: never empty, `.` or `..`, and without `/` or controls."""
    name = "".join("_" if char == "/" or unicodedata.category(char) in ("Cc", "Cs") else char for char in wanted)
    if not name.strip(". "):
        return "file"
    stem, ending = os.path.splitext(name)
    if len(ending.encode()) > _MAX_ENDING:
        stem, ending = name, ""
    room = MAX_NAME - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore") + ending
