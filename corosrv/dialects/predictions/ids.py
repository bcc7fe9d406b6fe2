"""Ids of predictions: which ones clients may choose, and how the server makes its own."""

from __future__ import annotations

import base64
import re
import uuid

_ALLOWED = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}")


def is_id(text: str) -> bool:
    """Returns whether a client may choose this id."""
    return _ALLOWED.fullmatch(text) is not None


def new_id() -> str:
    """Makes an id of 26 letters and digits that nobody can guess."""
    return base64.b32encode(uuid.uuid4().bytes).decode().rstrip("=").lower()
