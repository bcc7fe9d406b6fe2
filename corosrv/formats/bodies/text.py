"""Checks texts that clients send."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import Refused


def check_text(value: Any, param: str) -> str:
    """Returns a string that can be encoded as UTF-8. Raises Refused for half a surrogate pair, which JSON allows."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{param}: half of a surrogate pair is no character", param) from None
    return str(value)
