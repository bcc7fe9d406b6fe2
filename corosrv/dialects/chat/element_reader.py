"""Reads arguments that are written as elements in elements; see ElementTree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from corosrv.dialects.chat.argument_reader import ArgumentReader, escaped, json_of
from corosrv.dialects.chat.patterns import partial_match_at
from corosrv.formats.callformats.description import ElementTree

_EMPTY = {"object": "{}", "array": "[]"}


class _Kind(Enum):
    OPEN = "nothing but its tag has come, or a text that is no string"
    TEXT = "a string"
    OBJECT = "an object"
    LIST = "a list"


@dataclass(slots=True)
class _Element:
    """One element whose end has not come."""

    name: str
    path: str  # names from the arguments to this element
    kind: _Kind = _Kind.OPEN
    n_children: int = 0
    pieces: list[str] = field(default_factory=list)  # of a text that is no string


class ElementReader(ArgumentReader):
    """Gives strings as they come, and other values when they are complete."""

    def __init__(self, tree: ElementTree, types: Mapping[str, str]) -> None:
        """`types`: JSON types by the paths of elements, as far as a schema tells them."""
        self._tree = tree
        self._types = types
        self._open = [_Element("", "", _Kind.OBJECT)]
        self._tag = re.compile(re.escape(tree.mark) + r"<(/?)([^<>]+)>")
        self._begun_tag = re.compile(re.escape(tree.mark) + r"(?:<[^<>]*)?\Z")

    def feed(self, text: str, is_last: bool) -> tuple[int, str]:
        at, pieces = 0, []
        while not self.is_whole and at < len(text):
            size, piece = self._step(text[at:], is_last)
            at += size
            pieces.append(piece)
            if size == 0 and not self.is_whole:
                break
        return at, "".join(pieces)

    def _step(self, text: str, is_last: bool) -> tuple[int, str]:
        """Returns how much of the text is taken, and the JSON for it."""
        top = self._open[-1]
        if self._is_string(top):
            return self._string(top, text, is_last)
        match = self._tag.match(text)
        if match is not None:
            return self._close(match) if match[1] else (match.end(), self._begin(top, match[2]))
        if self._begun_tag.match(text) and not is_last:
            return 0, ""
        size = len(text) if is_last else partial_match_at(text, (self._tree.mark,))
        if (at := text.find(self._tree.mark, 1)) >= 0:
            size = min(size, at)
        top.pieces.append(text[:size])
        return size, ""

    def _is_string(self, element: _Element) -> bool:
        return element.kind is _Kind.TEXT or self._types.get(element.path) == "string"

    def _string(self, element: _Element, text: str, is_last: bool) -> tuple[int, str]:
        opening = "" if element.kind is _Kind.TEXT else '"'
        element.kind = _Kind.TEXT
        end = f"{self._tree.mark}</{element.name}>"
        at = text.find(end)
        if at >= 0:
            self._open.pop()
            return at + len(end), f'{opening}{escaped(text[:at])}"'
        size = len(text) if is_last else partial_match_at(text, (end,))
        return size, opening + escaped(text[:size])

    def _begin(self, parent: _Element, name: str) -> str:
        """Begins an element in another one, which is an object or a list then."""
        opening = ""
        if parent.kind is _Kind.OPEN:
            is_list = name == self._tree.item and self._types.get(parent.path) != "object"
            parent.kind, opening = (_Kind.LIST, "[") if is_list else (_Kind.OBJECT, "{")
        elif len(self._open) == 1 and not parent.n_children:
            opening = "{"
        lead = ", " if parent.n_children else ""
        key = "" if parent.kind is _Kind.LIST else f"{json.dumps(name, ensure_ascii=False)}: "
        parent.n_children += 1
        self._open.append(_Element(name, f"{parent.path}/{name}" if parent.path else name))
        return opening + lead + key

    def _close(self, match: re.Match[str]) -> tuple[int, str]:
        element = self._open[-1]
        if len(self._open) == 1:  # the end of the call, which is no part of the arguments
            self.is_whole = True
            return 0, "}" if element.n_children else "{}"
        self._open.pop()
        if element.kind is _Kind.OPEN:
            text = "".join(element.pieces).strip()
            return match.end(), json_of(text) if text else _EMPTY.get(self._types.get(element.path, ""), '""')
        return match.end(), "]" if element.kind is _Kind.LIST else "}"
