"""Runs what would block the hub in a thread or a process of its own, while other greenlets run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import gevent.subprocess

from corosrv.base.waits.hubs import own_hub

P = ParamSpec("P")
T = TypeVar("T")


def run_process(
    command: Sequence[str], timeout: float, read: bytes = b"", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, which reads these bytes; other greenlets run meanwhile.

    `environment`: all of its variables; None: those of this process.
    Raises subprocess.TimeoutExpired.
    """
    cooperative = own_hub() is not None
    run = gevent.subprocess.run if cooperative else subprocess.run
    return run(command, input=read, capture_output=True, timeout=timeout, check=False, env=environment)


def call_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Calls something that computes for long without the GIL; other greenlets run meanwhile."""
    hub = own_hub()
    if hub is None:
        return function(*arguments, **keywords)
    result: T
    result, error = hub.threadpool.apply(_outcome, (function, arguments, keywords))
    if error is not None:
        raise error
    return result


def _outcome(
    function: Callable[..., T], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[T | None, Exception | None]:
    """Returns what a call returns or raises: gevent prints what a thread of its pool raises, whoever may expect it."""
    try:
        return function(*arguments, **keywords), None
    except Exception as error:  # whatever it is, the caller gets it
        return None, error
