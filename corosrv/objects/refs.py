"""References to objects, as calls and clients pass them on."""

from __future__ import annotations

import re

import msgspec

from corosrv.errors import Refused

_KEY = re.compile(r"[A-Za-z0-9._:-]{1,200}")


class ObjRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Refers to one immutable object. It tells no path: only the store that made it can find the content."""

    id: str
    size: int  # bytes
    sha256: str  # of the content, in hexadecimal
    content_type: str
    expires_ms: int  # Unix time
    key: str = ""
    replica: str = ""  # whose store has it; empty: this one's


def check_key(key: str) -> None:
    """Raises Refused unless the key has 1 to 200 of the characters that keys may have."""
    if not _KEY.fullmatch(key):
        raise Refused(f"an object's key has 1 to 200 of A-Z a-z 0-9 . _ : -, not {key[:220]!r}", "key")
