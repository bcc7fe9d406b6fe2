"""Points in time, as prediction objects write them."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def rfc3339(time: datetime) -> str:
    """Formats a time in UTC, with microseconds."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
