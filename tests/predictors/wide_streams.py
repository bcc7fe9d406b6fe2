"""Sync generators for tests of the worker's child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from corosrv.worker import CancelationException


def wide() -> Iterator[str]:
    """More than any channel takes, for ever."""
    try:
        while True:
            yield "x" * 500_000
    except CancelationException:
        print("told at the yield")
        raise


async def wide_async() -> AsyncIterator[str]:
    """The same, and it never waits for anything by itself."""
    try:
        while True:
            yield "x" * 500_000
    except asyncio.CancelledError:
        print("told at the yield")
        raise
