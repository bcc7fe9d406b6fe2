"""The scope of user code: the prediction that the current context belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from corosrv.workers.worker.metrics import Metrics


class Scope:
    """One prediction's context and metrics. Outside predictions it is empty, and metrics are dropped."""

    def __init__(self, context: dict[str, str], metrics: Metrics) -> None:
        self.context = context
        self.metrics = metrics

    def record_metric(self, name: str, value: Any, mode: str = "replace") -> None:
        """The same as metrics.record."""
        self.metrics.record(name, value, mode)


NOWHERE = Scope({}, Metrics(None))

# Tasks inherit it by themselves, threads by corosrv.workers.worker.printing.threads.
scope: ContextVar[Scope] = ContextVar("corosrv_scope", default=NOWHERE)


def current_scope() -> Scope:
    """Returns the scope of the prediction that this call was made for; never None."""
    return scope.get()
