"""Checks the names under which objects are found again."""

from __future__ import annotations

import re

from corosrv.base.errors import Refused

_KEY = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def check_key(key: str) -> None:
    """Raises Refused unless the key has 1 to 200 of the characters that keys may have."""
    if not _KEY.fullmatch(key):
        raise Refused(f"an object's key has 1 to 200 of A-Z a-z 0-9 . _ : -, not {key[:220]!r}", "key")
