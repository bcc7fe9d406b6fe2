"""Reads arguments that are a row of keys and values, or elements in elements; see ArgumentRow and ElementTree."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from corosrv.dialects.chat.argument_reader import ArgumentReader, JsonReader, NotationReader, escaped, json_of
from corosrv.dialects.chat.call_patterns import GAP, flexible
from corosrv.dialects.chat.parts import Pattern, first_of, partial_match_at, steps
from corosrv.formats.callformats.description import ArgumentRow, CallFormat, ElementTree

_EMPTY = {"object": "{}", "array": "[]"}


class _ElementKind(Enum):
    OPEN = "nothing but its tag has come, or a text that is no string"
    TEXT = "a string"
    OBJECT = "an object"
    LIST = "a list"


@dataclass(slots=True)
class _Element:
    """One element whose end has not come."""

    name: str
    path: str  # names from the arguments to this element
    kind: _ElementKind = _ElementKind.OPEN
    n_children: int = 0
    pieces: list[str] = field(default_factory=list)  # of a text that is no string


class ElementReader(ArgumentReader):
    """Gives strings as they come, and other values when they are complete."""

    def __init__(self, tree: ElementTree, types: Mapping[str, str]) -> None:
        """`types`: JSON types by the paths of elements, as far as a schema tells them."""
        self._tree = tree
        self._types = types
        self._open = [_Element("", "", _ElementKind.OBJECT)]
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
        if top.kind is _ElementKind.TEXT or self._types.get(top.path) == "string":
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

    def _string(self, element: _Element, text: str, is_last: bool) -> tuple[int, str]:
        opening = "" if element.kind is _ElementKind.TEXT else '"'
        element.kind = _ElementKind.TEXT
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
        if parent.kind is _ElementKind.OPEN:
            is_list = name == self._tree.item and self._types.get(parent.path) != "object"
            parent.kind, opening = (_ElementKind.LIST, "[") if is_list else (_ElementKind.OBJECT, "{")
        elif len(self._open) == 1 and not parent.n_children:
            opening = "{"
        lead = ", " if parent.n_children else ""
        key = "" if parent.kind is _ElementKind.LIST else f"{json.dumps(name, ensure_ascii=False)}: "
        parent.n_children += 1
        self._open.append(_Element(name, f"{parent.path}/{name}" if parent.path else name))
        return opening + lead + key

    def _close(self, match: re.Match[str]) -> tuple[int, str]:
        element = self._open[-1]
        if len(self._open) == 1:  # the end of the call, which is no part of the arguments
            self.is_whole = True
            return 0, "}" if element.n_children else "{}"
        self._open.pop()
        if element.kind is _ElementKind.OPEN:
            text = "".join(element.pieces).strip()
            return match.end(), json_of(text) if text else _EMPTY.get(self._types.get(element.path, ""), '""')
        return match.end(), "]" if element.kind is _ElementKind.LIST else "}"


# What strings of Python have behind a backslash, and the same in JSON.
_ESCAPES = {"n": "\\n", "t": "\\t", "r": "\\r", "b": "\\b", "f": "\\f", "\\": "\\\\", '"': '\\"', "'": "'", "/": "/"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
# One that is whole, or will never be.
_ENDED_ESCAPE = r"\\(?:u(?:[0-9a-fA-F]{4}|(?![0-9a-fA-F]{0,3}\Z))|x(?:[0-9a-fA-F]{2}|(?![0-9a-fA-F]?\Z))|[^ux])"
_CDATA = "<![CDATA["  # some models put it around strings that hold markup
_WORD = r"(\w*)"
# A bracket, a comma, or a string, which may not have ended.
_BRACKET = re.compile(r"[\[\](){},]|\"(?:\\.|[^\"\\])*\\?\"?|'(?:\\.|[^'\\])*\\?'?", re.DOTALL)


class _MemberMode(Enum):
    KEY = "before a key, or the end of the arguments"
    TEXT = "in a string without quotes"
    QUOTED = "in a string between quotes"
    VALUE = "in a value that is no string"


class MemberReader(ArgumentReader):
    """Reads what ArgumentRow describes. Gives strings as they come, and other values when they are complete."""

    def __init__(self, members: ArgumentRow, string_members: Container[str]) -> None:
        self._members = members
        self._string_members = string_members
        self._mode = _MemberMode.KEY
        self._is_begun = self._has_cdata = False  # of the string that is read
        self._quote = members.quote  # of the string that is read
        self._n_members = 0
        self._first = _key_pattern(members, members.opening)
        self._next = _key_pattern(members, members.between)
        self._end = members.value_end.strip()
        self._space = members.value_end[: len(members.value_end) - len(members.value_end.lstrip())]

    def feed(self, text: str, is_last: bool) -> tuple[int, str]:
        at, json_text = 0, ""
        while not self.is_whole:
            size, piece, goes_on = self._step(text[at:], is_last)
            at, json_text = at + size, json_text + piece
            if not goes_on:
                break
        return at, json_text

    def _step(self, text: str, is_last: bool) -> tuple[int, str, bool]:
        """Returns how much of the text is taken, the JSON for it, and whether there is more to do."""
        if self._mode is _MemberMode.KEY:
            return self._key(text, is_last)
        if self._mode is _MemberMode.TEXT:
            return self._text(text, is_last)
        if self._mode is _MemberMode.QUOTED:
            return self._quoted(text, is_last)
        return self._value(text, is_last)

    def _key(self, text: str, is_last: bool) -> tuple[int, str, bool]:
        pattern = self._next if self._n_members else self._first
        match = pattern.match(text)
        quotes = self._members.quotes
        if match is not None:
            rest = text[match.end() :]
            if not is_last and any(quote.startswith(rest) for quote in quotes):
                return 0, "", False
            size, kind = match.end(), self._kind(match)
            if quote := next(filter(rest.startswith, quotes), ""):
                size, kind, self._quote = size + len(quote), _MemberMode.QUOTED, quote
            self._mode, self._is_begun = kind, False
            lead = ", " if self._n_members else "{"
            self._n_members += 1
            opened = "" if kind is _MemberMode.VALUE else '"'
            return size, f"{lead}{json.dumps(match[1], ensure_ascii=False)}: {opened}", True
        if pattern.may_follow(text) and (not is_last or text.strip()):
            return len(text) if is_last else 0, "", False  # what is cut off in a key is markup
        self.is_whole = bool(text) or not is_last
        return 0, ("}" if self._n_members else "{}") if self.is_whole else "", False

    def _kind(self, match: re.Match[str]) -> _MemberMode:
        members = self._members
        if members.type_words:
            is_string = match[2] == members.type_word("string")
        else:
            is_string = match[1] in self._string_members and not members.quote
        return _MemberMode.TEXT if is_string else _MemberMode.VALUE

    def _text(self, text: str, is_last: bool) -> tuple[int, str, bool]:
        if not self._is_begun:
            if not is_last and text != _CDATA and _CDATA.startswith(text):
                return 0, "", False
            self._is_begun, self._has_cdata = True, text.startswith(_CDATA)
            if self._has_cdata:
                return len(_CDATA), "", True
        size, is_ended = self._until_end(text, is_last)
        if is_ended:
            self._mode = _MemberMode.KEY
            return size[1], escaped(text[: size[0]]) + '"', True
        return size[0], escaped(text[: size[0]]), False

    def _value(self, text: str, is_last: bool) -> tuple[int, str, bool]:
        size, is_ended = self._until_bracket(text) if self._members.quote else self._until_end(text, is_last)
        if not is_ended:  # what is cut off in a value tells no value
            return len(text) if is_last else 0, "", False
        self._mode = _MemberMode.KEY
        return size[1], json_of(text[: size[0]]), True

    def _quoted(self, text: str, is_last: bool) -> tuple[int, str, bool]:
        # Templates write quotes inside a string as they are: the one that ends it has a comma or a bracket behind it.
        quote = re.escape(self._quote)
        content = re.compile(rf"(?:{_ENDED_ESCAPE}|(?!{quote})[^\\]|{quote}(?=\s*[^\s,)]))*", re.DOTALL)
        match = content.match(text)
        assert match is not None
        end = match.end()
        rest = text[end:]
        if rest.startswith(self._quote) and (is_last or rest[len(self._quote) :].strip()):
            self._mode = _MemberMode.KEY
            return end + len(self._quote), _json_content(text[:end]) + '"', True
        return end, _json_content(text[:end]), False

    def _until_end(self, text: str, is_last: bool) -> tuple[tuple[int, int], bool]:
        """Returns where a value ends, where the text behind it does, and whether this end is there."""
        ends: tuple[str, ...] = self._end, self._space + self._end
        if self._has_cdata and self._mode is _MemberMode.TEXT:
            ends = tuple(f"]]>{end}" for end in ends)
        at, end_text = first_of(text, ends)
        if at >= 0:
            return (at, at + len(end_text)), True
        end = len(text) if is_last else partial_match_at(text, ends)
        return (end, end), False

    def _until_bracket(self, text: str) -> tuple[tuple[int, int], bool]:
        """Returns the same for a value that ends before a comma or a bracket that it has not opened."""
        depth = 0
        for match in _BRACKET.finditer(text):
            if match[0] in ("[", "(", "{"):
                depth += 1
            elif depth == 0 and match[0] in ("]", ")", "}", ","):
                return (match.start(), match.start()), True
            elif match[0] in ("]", ")", "}"):
                depth -= 1
        return (len(text), len(text)), False


@lru_cache(maxsize=64)
def _key_pattern(members: ArgumentRow, before: str) -> Pattern:
    """Makes the pattern of a key and the texts around it. Group 1 is the key, group 2 the word of its type."""
    behind = members.key_end if members.type_words else members.key_end + members.value_start
    key = r"([^\s=,()'\"\[\]{}]+)" if members.quote else rf"([^{re.escape(behind.lstrip()[:1])}\n]+)"
    around = [GAP] if members.quotes else []  # Python has space wherever it likes
    row = [GAP, *steps(before.strip()), *([GAP] if before.endswith(" ") else []), key]
    row += [*around, *flexible(behind.rstrip()), *around]
    last = behind
    if members.type_words:
        row += [_WORD, *flexible(members.value_start.rstrip())]
        last = members.value_start
    if last.endswith("\n"):
        row.append(r"(?:\n|(?=[^\n]))")
    return Pattern(*row)


def _json_content(text: str) -> str:
    """Returns what stands between the quotes of a string of Python as it stands in one of JSON."""
    pieces, at = [], 0
    for match in _ESCAPE.finditer(text):
        code = match[1] or (match[2] and f"00{match[2]}")
        pieces += [escaped(text[at : match.start()]), f"\\u{code}" if code else _escape_of(match[3])]
        at = match.end()
    return "".join((*pieces, escaped(text[at:])))


def _escape_of(letter: str) -> str:
    return _ESCAPES.get(letter) or escaped(f"\\{letter}")


def reader_for(form: CallFormat, string_members: Container[str], types: Mapping[str, str]) -> ArgumentReader:
    """Makes the reader of a call's arguments.

    `string_members`: the names of those that are strings; `types`: JSON types by paths of members, for elements.
    """
    if isinstance(form.arguments, ElementTree):
        return ElementReader(form.arguments, types)
    if isinstance(form.arguments, ArgumentRow):
        return MemberReader(form.arguments, string_members)
    return JsonReader() if form.arguments is None else NotationReader(form.arguments)
