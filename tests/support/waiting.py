"""Waits for what no event tells, such as the state of another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import gevent

WAIT_SECONDS = 30.0  # for what should come soon: nothing is claimed of how soon, and a busy machine takes its time

T = TypeVar("T")


def eventually(look: Callable[[], T], within: float = WAIT_SECONDS, what: str = "") -> T:
    """Returns what `look` returns as soon as it is true; fails after `within` seconds. Keeps its thread waiting."""
    return _look_until_true(look, lambda: time.sleep(0.02), within, what)


def wait_until(look: Callable[[], T], what: str = "", within: float = WAIT_SECONDS) -> T:
    """Lets other greenlets run until `look` returns something true, and returns that; fails after `within` seconds."""
    return _look_until_true(look, lambda: gevent.sleep(0.005), within, what)


def _look_until_true(look: Callable[[], T], pause: Callable[[], None], within: float, what: str) -> T:
    deadline = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what or 'what was waited for'}"
        pause()
    return seen
