"""Defines errors of the Redis server that several fronts share."""

from __future__ import annotations

from corosrv.base.errors.unavailable import Unavailable


class RedisUnavailable(Unavailable):
    """Redis cannot be reached, or did not answer in time; whether it ran the command is not known."""


class RedisRefused(Unavailable):
    """Redis answered a command with an error; `word` is its first word, as `NOGROUP` or `OOM`."""

    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.word = word
