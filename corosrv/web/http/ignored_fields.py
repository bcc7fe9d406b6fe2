"""Tells clients and operators which fields of a body mean nothing here: a misspelt one would be ignored in silence."""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from flask import Response, g

from corosrv.web.http.lean_flask import current

log = logging.getLogger("corosrv.http")

HEADER = "X-Corosrv-Ignored"

_MOST_NAMES = 16  # in one header
_MOST_CHARACTERS = 64  # of a name
_MOST_LOGGED = 200  # names: whoever invents them must not fill the log
_NOT_SHOWN = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_NOTE = "corosrv_ignored"

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class IgnoredFields:
    """The unknown fields of bodies: named in a header of the answer, and each once in the log."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, body: bytes, kind: Any) -> None:
        """Looks for members of the current request's body that its type does not know.

        `body`: JSON that was decoded to `kind` already. Types that are no Struct take any member.
        """
        known = _names_of(kind)
        if known is None:
            return
        members = _members.decode(body.removeprefix(b"\xef\xbb\xbf"))
        if members.keys() <= known:
            return
        # A null asks for nothing.
        unknown = [name for name, value in members.items() if name not in known and bytes(value) != b"null"]
        if unknown:
            setattr(current(g), _NOTE, _header(unknown))
            self._log(unknown, known)

    def _log(self, unknown: Iterable[str], known_names: frozenset[str]) -> None:
        for shown in map(_printable, unknown):
            if shown in self._logged or len(self._logged) >= _MOST_LOGGED:
                continue
            self._logged.add(shown)
            nearest = difflib.get_close_matches(shown, known_names, n=1, cutoff=0.8)
            meant = f" (did its client mean {nearest[0]}?)" if nearest else ""
            log.warning("a request has a field %s, which is unknown here and ignored%s; told once", shown, meant)


def add_header(response: Response) -> None:
    """Names the ignored fields of the current request's body in its answer, if there are any."""
    if value := current(g).pop(_NOTE, None):
        response.headers[HEADER] = value


@functools.cache  # the types of bodies are few
def _names_of(kind: Any) -> frozenset[str] | None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _header(names: list[str]) -> str:
    shown = ", ".join(map(_printable, names[:_MOST_NAMES]))
    return shown if len(names) <= _MOST_NAMES else f"{shown}, ..."


def _printable(name: str) -> str:
    return _NOT_SHOWN.sub("?", name[:_MOST_CHARACTERS])
