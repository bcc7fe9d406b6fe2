"""Names of predictions: those that clients may choose, and those that the server makes."""

from __future__ import annotations

import base64
import re
import uuid

_ALLOWED = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}")


def is_id(text: str) -> bool:
    """A client may call a prediction so."""
    return _ALLOWED.fullmatch(text) is not None


def new_id() -> str:
    """26 letters and digits, which nobody can guess."""
    return base64.b32encode(uuid.uuid4().bytes).decode().rstrip("=").lower()
