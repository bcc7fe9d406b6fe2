"""Reads what COROSRV_MODEL says: one path, or several models by name.

`PATH`, or `NAME=PATH?OPTION=VALUE&OPTION=VALUE,NAME=PATH`. A path that reads like a name and an equals sign is written
with `./` before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

SYNTHETIC = "synthetic:"

_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@+-]*"
_NAMED = re.compile(rf"(?!{SYNTHETIC})({_NAME})=(.*)", re.DOTALL)
_BETWEEN = re.compile(rf",(?=\s*{_NAME}=)")


class Entry(NamedTuple):
    """One model: its name, empty where none is given, where it is, and what is said of it alone."""

    name: str
    path: str
    options: tuple[tuple[str, str], ...] = ()


def parse(text: str) -> list[Entry]:
    """The models of a list, at least one; names are not compared."""
    found = _NAMED.match(text.strip())
    if not found and not _BETWEEN.search(text):
        return [Entry("", text)]  # one path as it stands, whatever it is made of
    return [_entry(part.strip()) for part in _BETWEEN.split(text)]


def _entry(text: str) -> Entry:
    found = _NAMED.match(text)
    path, _, query = (found.group(2) if found else text).partition("?")
    return Entry(found.group(1) if found else stem(path), path, tuple(parse_qsl(query, keep_blank_values=True)))


def stem(path: str) -> str:
    """What a model is called when nobody says."""
    return "synthetic" if path.startswith(SYNTHETIC) else Path(path).stem


def join(texts: Sequence[str]) -> str:
    """Several lists as one. Those that are a mere path get their file's name, unless there is no other."""
    if len(texts) == 1:
        return texts[0]
    return ",".join(text if _NAMED.match(text) else f"{stem(text.partition('?')[0])}={text}" for text in texts)


def bare(path: str) -> str:
    """The path written so that it is no name and equals sign."""
    return f"./{path}" if _NAMED.match(path) else path
