"""Reads the heads of HTTP/1.1 answers: status lines and header fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from corosrv.contracts.jobs.infer import Headers

MAX_HEAD = 65_536  # bytes of a head, with the interim answers before it
MAX_FIELDS = 100
_CONTINUE = 100

_END = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: [^\n]*)?\r?\n")
_FOLD = re.compile(r"\r?\n[ \t]+")
# Whole lines; one with another name, or with a line end of half its length in it, is no field.
_FIELD = re.compile(r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([^\r\n]*)\r?$", re.MULTILINE)


class BadAnswer(ValueError):
    """Tells that an upstream has sent what HTTP/1.1 does not call an answer."""


@dataclass(frozen=True, slots=True)
class ReceivedHead:
    """Holds the head of an answer. `minor`: its version is HTTP/1.minor."""

    status: int
    minor: int
    fields: Headers
    values: Mapping[str, str]  # by the name in lower case; those of one name with commas between them

    def members(self, name: str) -> list[str]:
        """Returns the members of all fields of a name, which is in lower case, as those are."""
        value = self.values.get(name)
        if value is None:
            return []
        return [member for word in value.lower().split(",") if (member := word.strip())]


class HeadReader:
    """Takes an answer as it arrives until its head is there. Touches no socket."""

    def __init__(self) -> None:
        self._held = b""
        self._n_interim = 0  # bytes of interim answers
        self.rest = b""  # what has come behind the head

    def feed(self, data: bytes) -> ReceivedHead | None:
        """Returns the head once all of it has come. Raises BadAnswer.

        `100 Continue` is skipped: nobody waits for it.
        """
        self._held += data
        while (end := _END.search(self._held)) is not None:
            head = parse_head(self._held[: end.end()])
            self._held = self._held[end.end() :]
            if head.status != _CONTINUE:
                self.rest, self._held = self._held, b""
                return head
            self._n_interim += end.end()
        if self._n_interim + len(self._held) > MAX_HEAD:
            raise BadAnswer(f"its head is longer than {MAX_HEAD} bytes")
        return None


def parse_head(data: bytes) -> ReceivedHead:
    """Parses a head with the empty line at its end. Raises BadAnswer. What is no field is left out."""
    text = data.decode("latin-1")
    status_line = _STATUS_LINE.match(text)
    if status_line is None:
        raise BadAnswer(f"{text[:40]!r} does not begin an answer of HTTP/1.1")
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)
    fields = tuple((name, value.rstrip(" \t")) for name, value in _FIELD.findall(text, status_line.end()))
    if len(fields) > MAX_FIELDS:
        raise BadAnswer(f"it has more than {MAX_FIELDS} header fields")
    return received_head(int(status_line[2]), int(status_line[1]), fields)


def received_head(status: int, minor: int, fields: Headers) -> ReceivedHead:
    values: dict[str, str] = {}
    for name, value in fields:
        key = name.lower()
        values[key] = f"{values[key]},{value}" if key in values else value
    return ReceivedHead(status, minor, fields, values)
