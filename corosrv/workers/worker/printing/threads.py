"""Threads that a prediction starts belong to it, as its tasks do: what they print and record is the prediction's.

Those of a pool outlive it. There each call belongs to the prediction that it was submitted by.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures.thread import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from corosrv.workers.worker.printing.printed import place
from corosrv.workers.worker.scope import scope

T = TypeVar("T")


def inherit_predictions() -> None:
    """Makes all later threads, and calls in thread pools, belong to the prediction that starts them."""
    start = threading.Thread.start
    submit: Callable[..., Any] = ThreadPoolExecutor.submit

    @functools.wraps(start)
    def start_as_part(self: threading.Thread) -> None:
        if place.get() is not None:
            # On the thread itself: `run` may be overridden, and is looked up when the thread has started.
            self.run = _part(self.run, self)  # type: ignore[method-assign]
        start(self)

    @functools.wraps(submit)
    def submit_as_part(self: ThreadPoolExecutor, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _part(call), *args, **kwargs)

    threading.Thread.start = start_as_part  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_as_part  # type: ignore[assignment, method-assign]


def _part(call: Callable[..., T], thread: threading.Thread | None = None) -> Callable[..., T]:
    """The call as a part of what the current context belongs to, whatever the thread does that makes it."""
    its_scope, printed = scope.get(), place.get()

    def enter() -> None:
        scope.set(its_scope)
        place.set(printed)

    def call_as_part(*args: Any, **kwargs: Any) -> T:
        if thread is not None:
            del thread.run  # or it would hold itself for ever
            enter()  # for good: what is printed of an error that ends the thread is part of it, too
            return call(*args, **kwargs)
        context = copy_context()
        context.run(enter)
        return context.run(call, *args, **kwargs)

    return call_as_part
