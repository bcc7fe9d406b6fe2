"""Retry-After: how long another server asks to wait before the next try."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER = 300.0  # seconds


def retry_after(text: str | None, now: float) -> float:
    """Reads a Retry-After field, which holds seconds or a date. Returns seconds, 300 at most. `now`: Unix time."""
    if not text:
        return 0.0
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
