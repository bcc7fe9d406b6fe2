"""The text of server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec


def event(value: Any) -> bytes:
    """Encodes a JSON value as one event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Encodes a JSON value as one event that has a name."""
    return b"event: " + name.encode() + b"\n" + event(value)
