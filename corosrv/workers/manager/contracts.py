"""Names what the manager needs of others: a dispatcher, and somebody who makes worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.dispatch.host import HandlerHost
from corosrv.workers.dispatch.stats import DispatchStats
from corosrv.workers.worker.parent.app_worker import AppWorker

# Makes a process for a pool (None: it imports the application, and waits), a place in it, and an incarnation.
MakeWorker = Callable[[str | None, str, int], AppWorker]


class HostDispatcher(Protocol):
    """Stands for the dispatcher as the manager sees it; see corosrv.workers.dispatch.dispatcher."""

    def add_host(self, host: HandlerHost) -> bool: ...

    def remove_host(self, host: HandlerHost) -> bool: ...

    def note_crash(self, keys: Sequence[str]) -> None: ...

    def expect(
        self,
        pool: str,
        cards: Iterable[HandlerCard],
        *,
        can_start: bool = True,
        reason: str = "",
        patience: float | None = None,
    ) -> None: ...

    def await_pools(self, reason: Callable[[], str]) -> None: ...

    def on_need(self, listener: Callable[[str], None]) -> None: ...

    def stats(self) -> DispatchStats: ...

    def shut_down(self) -> None: ...

    def drain(self, timeout: float | None = None) -> bool: ...

    def close(self) -> None: ...
