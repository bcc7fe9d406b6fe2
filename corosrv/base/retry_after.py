"""Retry-After: how long another server asks to wait before the next try, and how long this one does."""

from __future__ import annotations

import math
import random
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER = 300.0  # seconds
LONGEST_TOLD = 120  # seconds that this server asks for at most
_JITTER = 0.1  # of the wait, at most: clients that were refused together do not come back together


def retry_after(text: str | None, now: float) -> float:
    """Reads a Retry-After field, which holds seconds or a date. Returns seconds, 300 at most. `now`: Unix time."""
    if not text:
        return 0.0
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def retry_seconds(wait: float) -> int:
    """Returns what Retry-After says to a client for which there should be room after `wait` seconds.

    That is up to a tenth more, for who comes too early is refused again; from 1 to LONGEST_TOLD.
    """
    return math.ceil(min(max(wait * (1 + _JITTER * random.random()), 1), LONGEST_TOLD))
