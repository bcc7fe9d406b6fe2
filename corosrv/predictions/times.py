"""Moments as predictions tell them."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> datetime:
    return datetime.now(timezone.utc)


def rfc3339(time: datetime) -> str:
    """UTC, with microseconds."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
