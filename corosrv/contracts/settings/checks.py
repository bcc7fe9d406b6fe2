"""Checks of settings: whether a value is allowed, and words that say which are."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from corosrv.base.outgoing.destinations import Destinations

MAX_INT32 = 2**31 - 1
DAY = 86_400  # seconds


class Check(NamedTuple):
    """A test of values and words for error messages, which follow the setting's name.

    A NaN, which compares false with everything, never passes.
    """

    is_good: Callable[[Any], bool]
    words: str


def between(least: float, most: float) -> Check:
    return Check(lambda value: least <= value <= most, f"must be from {least} to {most}")


def at_least(least: float) -> Check:
    return Check(lambda value: least <= value < math.inf, f"must be at least {least}")


def of_bytes(least: int) -> Check:
    """Allows numbers that the native core keeps in 64 bits."""
    return Check(lambda value: least <= value < 2**63, f"must be at least {least}, and below 2**63")


def one_of(*words: str) -> Check:
    *first, last = map(repr, words)
    return Check(lambda value: value in words, f"must be {', '.join(first)} or {last}")


def empty_or(check: Check) -> Check:
    return Check(lambda value: not value or check.is_good(value), f"{check.words}, or empty")


def none_or(check: Check) -> Check:
    return Check(lambda value: value is None or check.is_good(value), check.words)


def or_else(exception: float, check: Check) -> Check:
    """Allows what the check allows, and one value with a meaning of its own."""
    words = check.words.removeprefix("must be ")
    return Check(lambda value: value == exception or check.is_good(value), f"must be {exception} or {words}")


def _are_destinations(text: str) -> bool:
    try:
        Destinations(word.strip() for word in text.split(",") if word.strip())
    except ValueError:
        return False
    return True


FOLDER = Check(os.path.isdir, "must be a folder")
URL = Check(lambda text: text.startswith(("http://", "https://")), "must be an http or https URL")
HOSTS = Check(_are_destinations, "must be host names, addresses and networks, separated by commas")
PLAIN = Check(lambda text: text.isascii() and text.isprintable(), "must be printable ASCII")
