"""Defines the base class of workers that keep something between calls: a model, a connection, a count."""

from __future__ import annotations

from typing import Any


class BaseWorker:
    """Keeps something between calls: derive from it, define `handle`, and register the class with `@app.worker`.

    There is one object of it in each worker process of its pool. Every method may be a coroutine function.
    """

    def on_start(self) -> Any:
        """Prepares the worker, before any request is taken. A worker whose on_start raises does not start."""

    def on_stop(self) -> Any:
        """Cleans up when the worker ends gracefully, after the last request. `on_cleanup` is accepted in its place."""

    def handle(self, request: Any, context: Any) -> Any:
        """Answers a request, in any of the ways in which a function may."""
        raise NotImplementedError(f"{type(self).__name__} has no method handle(self, request, context)")


Worker = BaseWorker  # the name that authors know
