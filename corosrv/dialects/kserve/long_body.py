"""Cuts the tensors' data out of a long JSON body, so that what is left can be decoded at once."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from corosrv.base.errors import InvalidJson, Refused
from corosrv.base.processor import Turns
from corosrv.dialects.kserve.json_text import string_end
from corosrv.dialects.kserve.long_data import LongData, LongDataScanner

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
