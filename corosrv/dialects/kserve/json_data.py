"""Converts a tensor's `data` in JSON, flat or nested, to its raw form and back.

Those of a long body are cut out of it first, and decoded piece by piece, so that others run in between; what is left of
the body can be decoded at once. Decoding holds Python's lock, so a thread would not help. A piece ends at a comma
outside of strings. With as many brackets before it as are open there, and as many behind it as are then, it is JSON of
its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.base.errors import InvalidJson, InvalidTensor, Refused
from corosrv.base.processor import Turns
from corosrv.formats.bodies import decode_unscanned
from corosrv.formats.tensors import Tensor, elements
from corosrv.formats.tensors.elements import MAX_DIMENSIONS

_BACKSLASH = 0x5C
LIST_DECODER: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Any])


def mask(text: bytes) -> bytes:
    """Returns a text of the same length, in which each quote begins or ends a string: none is escaped."""
    if b"\\" not in text:
        return text
    return text.replace(rb"\\", b"__").replace(rb"\"", b"__")


def escape_end(text: bytes, begin: int, end: int) -> int:
    """Returns the end of a part of a text, moved on by one where it would fall behind an escaping backslash."""
    part = text[begin:end]
    n_backslashes = len(part) - len(part.rstrip(b"\\"))
    return min(end, len(text)) + n_backslashes % 2


def string_end(text: bytes, begin: int, limit: int) -> int:
    """Returns the place of the quote that ends the string whose content begins here; -1 if none is before `limit`."""
    end = text.find(b'"', begin, limit)
    while end >= 0 and _is_escaped(text, begin, end):
        end = text.find(b'"', end + 1, limit)
    return end


def _is_escaped(text: bytes, begin: int, at: int) -> bool:
    n_backslashes = 0
    while at > begin and text[at - 1] == _BACKSLASH:
        at -= 1
        n_backslashes += 1
    return n_backslashes % 2 == 1


WINDOW = 65_536  # bytes that are looked at together; decoding as many takes a millisecond or two
_FIRST_WINDOW = 1024  # most arrays are short
_BRACKET = re.compile(rb"[\[\]]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]")


@dataclass(frozen=True, slots=True)
class ArrayPiece:
    """Marks a part of an array: its place in the text, and how many brackets are open before it and behind it."""

    begin: int
    end: int
    depth: int
    depth_after: int


@dataclass(frozen=True, slots=True)
class LongData:
    """Marks an array that stands in a long text."""

    text: bytes
    pieces: list[ArrayPiece]

    def decode(self) -> Iterator[tuple[list[Any], int]]:
        """Yields each piece as nested lists, and how many of its last lists go on in the next one. Gives way.

        The lists that begin a piece behind the first one go on from the one before. Raises InvalidJson.
        """
        turns = Turns()
        for piece in self.pieces:
            text = b"".join((b"[" * piece.depth, self.text[piece.begin : piece.end], b"]" * piece.depth_after))
            yield decode_unscanned(text, LIST_DECODER), piece.depth_after
            turns.give_way()


class LongDataScanner:
    """Finds the end of one array, and the pieces that it is decoded in. Follows brackets and strings alone: whether
    the rest is JSON shows when it is decoded."""

    def __init__(self, text: bytes, begin: int) -> None:
        """`begin`: where the array's bracket stands."""
        self._text = text
        self._at = begin + 1
        self._depth = 1
        self._is_in_string = False
        self._piece = (begin, 0)  # where the next piece begins, and the brackets that are open there
        self._pieces: list[ArrayPiece] = []

    def scan(self, turns: Turns) -> tuple[LongData, int]:
        """Returns the array, and the place behind it. Gives way. Raises InvalidJson for one without an end."""
        size = _FIRST_WINDOW
        while self._at < len(self._text):
            end = escape_end(self._text, self._at, self._at + size)
            array_end = self._pass_window(self._text[self._at : end])
            if array_end is not None:
                begin, depth = self._piece
                self._pieces.append(ArrayPiece(begin, array_end, depth, 0))
                return LongData(self._text, self._pieces), array_end
            self._at, size = end, WINDOW
            turns.give_way()
        raise InvalidJson("an array of data has no end")

    def _pass_window(self, window: bytes) -> int | None:
        """Takes the next bytes in; returns the place behind the array if it ends in them."""
        parts = mask(window).split(b'"')
        first = int(self._is_in_string)  # parts are in turn outside of strings and within
        closers, openers = _net_brackets(b"".join(parts[first::2]))
        if closers >= self._depth and (end := self._end_within(parts, first)) is not None:
            return end
        self._depth += openers - closers
        self._is_in_string ^= len(parts) % 2 == 0
        if self._depth > MAX_DIMENSIONS:
            raise Refused(f"the data are nested deeper than {MAX_DIMENSIONS} levels", "data")
        self._cut(parts, first)
        return None

    def _end_within(self, parts: list[bytes], first: int) -> int | None:
        """Returns the place behind the bracket that closes the array, if it is among these parts."""
        depth, at = self._depth, self._at
        for number, part in enumerate(parts):
            if number % 2 == first:
                for bracket in _BRACKET.finditer(part):
                    depth += 1 if bracket.group() == b"[" else -1
                    if depth == 0:
                        return at + bracket.end()
            at += len(part) + 1
        return None

    def _cut(self, parts: list[bytes], first: int) -> None:
        """Ends a piece at the last comma outside of strings, if there is one.

        Raises InvalidJson where two strings follow each other without a comma: of millions, none would end a piece.
        """
        place, after = self._at + sum(map(len, parts)) + len(parts) - 1, b""
        for number in reversed(range(len(parts))):
            place -= len(parts[number])
            if number % 2 == first:
                comma = parts[number].rfind(b",")
                after = parts[number][comma + 1 :] + after
                if comma >= 0:
                    self._end_piece(place + comma, self._depth - after.count(b"[") + after.count(b"]"))
                    return
                if 0 < number < len(parts) - 1:
                    raise InvalidJson("two strings in an array of data have no comma between them")
            place -= 1

    def _end_piece(self, comma: int, depth_after: int) -> None:
        begin, depth = self._piece
        self._pieces.append(ArrayPiece(begin, comma, depth, depth_after))
        self._piece = (comma + 1, depth_after)


def _net_brackets(structure: bytes) -> tuple[int, int]:
    """Returns how many brackets close, and then open, what is not within this text."""
    brackets = structure.translate(None, _NO_BRACKETS)
    for _ in range(MAX_DIMENSIONS + 1):
        shorter = brackets.replace(b"[]", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return brackets.count(b"]"), brackets.count(b"[")


MAX_REST = 1 << 19  # bytes beside the data; decoding as many takes some milliseconds
_TOKEN = re.compile(rb'["\[\]{}]')
_VALUE = re.compile(rb"\s*:\s*\[")
_DATA_DEPTH = 3  # the body, its inputs, one of them


def cut_data(text: bytes) -> tuple[bytes, Mapping[str, LongData]]:
    """Returns the text with a string in place of each array of data, and the arrays by these strings.

    Gives way to other greenlets. Raises Refused where too much is left, and InvalidJson for a string or an array
    without an end.
    """
    cutter = _Cutter(text)
    cutter.run()
    return b"".join(cutter.rest), cutter.arrays


class _Cutter:
    """Follows a body's brackets and strings from its beginning to its end."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._token = secrets.token_hex(8)  # no client's string is one of ours
        self._n_rest = 0
        self.rest: list[bytes] = []
        self.arrays: dict[str, LongData] = {}

    def run(self) -> None:
        text, turns = self._text, Turns()
        begin = at = depth = 0
        while (mark := _TOKEN.search(text, at, at + MAX_REST + 1)) is not None:
            at = mark.end()
            if mark.group() == b'"':
                at = self._pass_string(at)
                key = text[mark.end() : at - 1]
                if depth == _DATA_DEPTH and key == b"data" and (value := _VALUE.match(text, at, at + 256)):
                    self._keep(begin, value.end() - 1)
                    array, begin = LongDataScanner(text, value.end() - 1).scan(turns)
                    at = begin
                    self._cut(array)
            else:
                depth += 1 if mark.group() in b"[{" else -1
            self._check_rest(begin, at)
            turns.give_way()
        self._keep(begin, len(text))

    def _pass_string(self, begin: int) -> int:
        """Returns the place behind the quote that ends a string."""
        end = string_end(self._text, begin, begin + MAX_REST)
        if end < 0 and begin + MAX_REST < len(self._text):
            raise _too_long()
        if end < 0:
            raise InvalidJson("a string has no end")
        return end + 1

    def _cut(self, array: LongData) -> None:
        name = f"{self._token}:{len(self.arrays)}"
        self.arrays[name] = array
        self.rest.append(f'"{name}"'.encode())

    def _keep(self, begin: int, end: int) -> None:
        self._check_rest(begin, end)
        self.rest.append(self._text[begin:end])
        self._n_rest += end - begin

    def _check_rest(self, begin: int, end: int) -> None:
        if self._n_rest + min(end, len(self._text)) - begin > MAX_REST:
            raise _too_long()


def _too_long() -> Refused:
    return Refused(f"the body has more than {MAX_REST} bytes beside the data of its tensors", None, "too_long")


BINARY_ONLY = ("FP16", "BF16")  # JSON has no elements for them


def tensor(name: str, datatype: str, shape: Sequence[int], data: object, parameters: Any = None) -> Tensor:
    """Makes a tensor of decoded JSON, or of an array that is yet to be decoded; gives way in the latter.

    Raises InvalidTensor for elements of a wrong type, range or count, and for nested lists that are not as the shape
    says.
    """
    if datatype in BINARY_ONLY:
        raise InvalidTensor(
            name, f"has the datatype {datatype}, which JSON has no elements for: send it as binary data"
        )
    if isinstance(data, LongData):
        pieces = data.decode()
    elif isinstance(data, list):
        pieces = iter([(data, 0)])
    elif not shape and not isinstance(data, (str, dict)):
        pieces = iter([([data], 0)])
    else:
        raise InvalidTensor(name, "has data that are no array")
    checked = Tensor.from_checked(name, datatype, shape, b"", parameters)
    checked.raw = _pack(checked, pieces)
    return checked


def _pack(empty_tensor: Tensor, pieces: Iterable[tuple[list[Any], int]]) -> bytes:
    name, datatype, shape = empty_tensor.name, empty_tensor.datatype, empty_tensor.shape
    rows: _NestedRows | None = None
    packed: list[bytes] = []
    n_found = 0
    for values, n_open in pieces:
        if not packed and values and isinstance(values[0], list):
            rows = _NestedRows(name, shape)
        members = values if rows is None else rows.flatten(values, n_open)
        n_found += len(members)
        if n_found > empty_tensor.n_elements:
            raise InvalidTensor(
                name, f"has more elements than the {empty_tensor.n_elements} of the shape {list(shape)}"
            )
        packed.append(elements.pack(name, datatype, members))
    if n_found != empty_tensor.n_elements:
        raise InvalidTensor(
            name, f"has {n_found} elements, where the shape {list(shape)} needs {empty_tensor.n_elements}"
        )
    return packed[0] if len(packed) == 1 else b"".join(packed)


def flat(data: list[Any]) -> list[Any]:
    """Returns the elements of lists that may be nested. Raises Refused where they are nested too deep."""
    for _ in range(elements.MAX_DIMENSIONS):
        if not any(isinstance(member, list) for member in data):
            return data
        data = [element for member in data for element in (member if isinstance(member, list) else [member])]
    raise Refused(f"data are nested deeper than {elements.MAX_DIMENSIONS} levels")


class _NestedRows:
    """Flattens nested lists that come in pieces, and checks that each has as many members as the shape says."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._name = name
        self._shape = shape
        self._n_members = [0] * (len(shape) + 1)  # of the list that is open at each depth, from 1 on

    def flatten(self, values: list[Any], n_open: int) -> list[Any]:
        """Returns the elements of a piece, whose last `n_open` lists (the outermost first) go on in the next one."""
        members: list[Any] = []
        self._walk(values, 1, n_open, members)
        return members

    def _walk(self, values: list[Any], depth: int, n_open: int, members: list[Any]) -> None:
        if depth > len(self._shape):
            raise InvalidTensor(self._name, f"has nested lists, which the shape {list(self._shape)} has no place for")
        if depth == len(self._shape):
            members += values
            self._n_members[depth] += len(values)
        else:
            last = len(values) - 1
            for number, value in enumerate(values):
                if not isinstance(value, list):
                    raise InvalidTensor(self._name, "has lists and elements side by side")
                self._walk(value, depth + 1, n_open if number == last else 0, members)
        if depth > n_open:
            self._close(depth)

    def _close(self, depth: int) -> None:
        if self._n_members[depth] != self._shape[depth - 1]:
            raise InvalidTensor(self._name, f"has nested lists that are not of the shape {list(self._shape)}")
        self._n_members[depth] = 0
        self._n_members[depth - 1] += 1
