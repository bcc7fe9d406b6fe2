"""Reads the header Idempotency-Key."""

from __future__ import annotations

import re

from corosrv.base.errors import Refused

HEADER = "Idempotency-Key"
MAX_KEY = 255  # characters

_PLAIN = re.compile(r"[ -~]*")
# A String of the IETF's Structured Fields (RFC 8941), which its draft on this header asks for.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_ESCAPED = re.compile(r"\\(.)")


def parse_key(field: str) -> str:
    """Returns the key that a header's value holds: the value as it stands, or what is in its quotation marks.

    Raises Refused for a key that is empty, longer than MAX_KEY, not of printable ASCII, or wrongly quoted.
    """
    key = field.strip(" \t")
    if not _PLAIN.fullmatch(key):
        raise _refused("may hold printable ASCII characters only")
    if key.startswith('"'):
        if (quoted := _QUOTED.fullmatch(key)) is None:
            raise _refused("begins with a quotation mark, but is no quoted string")
        key = _ESCAPED.sub(r"\1", quoted[1])
    if not key:
        raise _refused("is empty: leave it out, or choose a key that no other request has")
    if len(key) > MAX_KEY:
        raise _refused(f"has more than {MAX_KEY} characters")
    return key


def _refused(problem: str) -> Refused:
    return Refused(f"the header {HEADER} {problem}", HEADER)
