"""Sync generators for tests of the worker's child."""

from __future__ import annotations

from collections.abc import Iterator

from corosrv.worker import CancelationException


def wide() -> Iterator[str]:
    """More than any channel takes, for ever."""
    try:
        while True:
            yield "x" * 500_000
    except CancelationException:
        print("told at the yield")
        raise
