"""Limits by the minute as token buckets, and the headers by which OpenAI's API tells clients what a limit has left."""

from __future__ import annotations

import math

_MINUTE = 60.0


class Bucket:
    """A token bucket: it holds what may be used in a minute, and is filled evenly. May be overdrawn by what is settled.

    `now`: of time.monotonic().
    """

    __slots__ = ("_at", "_level", "_names", "_rate", "capacity")

    def __init__(self, subject: str, per_minute: int, now: float) -> None:
        """`subject`: what it holds, in the names of headers."""
        self._names = header_names(subject)
        self.capacity = per_minute
        self._rate = per_minute / _MINUTE
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Returns what is left; negative where more was used."""
        level = self._level + (now - self._at) * self._rate
        if level > self.capacity:
            level = float(self.capacity)
        self._level = level
        self._at = now
        return level

    def wait(self, n: float, now: float) -> float:
        """Returns the seconds until `n` are left, 0 where they are; more than fit are never."""
        lack = n - self.level(now)
        return lack / self._rate if lack > 0 else 0.0

    def headers(self, now: float) -> tuple[tuple[str, str], ...]:
        """Returns the headers that tell what is left, and when nothing is used any more."""
        level = self.level(now)
        return limit_headers(self._names, self.capacity, level, (self.capacity - level) / self._rate)

    def take(self, n: float) -> None:
        """Takes `n`, whether or not they are left; a negative number gives back."""
        self._level -= n

    def set_used(self, n: float, now: float) -> None:
        """Sets what was used and has not come back."""
        self._level = self.capacity - n
        self._at = now

    def resize(self, per_minute: int, now: float) -> None:
        """Changes the size; what was used stays used."""
        used = self.capacity - self.level(now)
        self.capacity = per_minute
        self._rate = per_minute / _MINUTE
        self._level = per_minute - used


def header_names(subject: str) -> tuple[str, str, str]:
    return f"x-ratelimit-limit-{subject}", f"x-ratelimit-remaining-{subject}", f"x-ratelimit-reset-{subject}"


def limit_headers(names: tuple[str, str, str], limit: int, left: float, reset: float) -> tuple[tuple[str, str], ...]:
    of_limit, of_left, of_reset = names
    return (of_limit, str(limit)), (of_left, str(int(left)) if left > 0 else "0"), (of_reset, duration(reset))


def duration(seconds: float) -> str:
    """Writes a duration as OpenAI's headers do: 12ms, 8.64s, 6m0s, 1h30m0s."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    before = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{before}{ms / 1000:g}s"
