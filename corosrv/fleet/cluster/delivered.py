"""Keeps the calls that this front took out of shared queues, until each has ended."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import gevent

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.delivery import Delivered, Delivery, Submit, release_words
from corosrv.fleet.cluster.queue_names import QueueNames
from corosrv.fleet.cluster.script_runner import ScriptRunner
from corosrv.fleet.cluster.shared_call import Message

RECENT_S = 10.0  # seconds for which ends are kept, in case that Redis forgets the last ones
RECENT_ENDS = 4096
RECENT_BYTES = 16 << 20
RENEW_AT_ONCE = 100  # entries of one script


class DeliveredCalls:
    """Owns the calls that run here for other fronts, or for this one. Belongs to the hub's thread."""

    def __init__(self, names: QueueNames, runner: ScriptRunner, claim_ms: int) -> None:
        """`claim_ms`: of idleness, after which others take an entry."""
        self._names = names
        self._runner = runner
        self._claim_ms = claim_ms
        self._running: dict[str, Delivery] = {}  # by call
        self._ends: deque[tuple[float, Sequence[str], Sequence[Any]]] = deque()
        self._n_bytes = 0  # of those ends

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, entry: Delivered, card: HandlerCard, submit: Submit, on_start: Callable[[], None]) -> None:
        """Runs a call, in a greenlet of its own. Never waits."""
        if entry.call in self._running:  # this front was thought gone, and has claimed from itself
            on_start()
            return
        delivery = Delivery(entry, card, submit, self._names, self._runner, on_start, self._keep_end, self._claim_ms)
        self._running[entry.call] = delivery
        greenlet = gevent.spawn(delivery.run)
        greenlet.rawlink(lambda greenlet: self._forget(delivery))

    def return_entry(self, entry: Delivered) -> None:
        """Returns an entry to the queue that cannot run here. Never waits."""
        self._runner.submit(queue_scripts.RELEASE, *release_words(self._names, entry, self._claim_ms))

    def _forget(self, delivery: Delivery) -> None:
        delivery.tell_started()
        if self._running.get(delivery.entry.call) is delivery:
            del self._running[delivery.entry.call]

    def on_message(self, call: str, kind: bytes, message: Message) -> None:
        """Takes what the front that accepted a call wants of this one."""
        delivery = self._running.get(call)
        if delivery is None:
            return
        if kind == b"cancel":
            delivery.give_up()
        elif kind == b"ack":
            with suppress(KeyError, ValueError):  # of a message that no front has written
                delivery.acknowledge(int(message[b"n"]))

    def renew(self) -> None:
        """Says of all calls that they still run here, and gives up those that another front has taken. Never waits."""
        running = list(self._running.values())
        for start in range(0, len(running), RENEW_AT_ONCE):
            page = running[start : start + RENEW_AT_ONCE]
            keys = [delivery.entry.stream for delivery in page]
            arguments = [self._names.front, *(delivery.entry.entry_id for delivery in page)]
            self._runner.submit(queue_scripts.RENEW, keys, arguments, functools.partial(_give_up_lost, page))

    def reassert(self) -> None:
        """Tells Redis, which may have forgotten, which calls run here and which have just ended. Never waits."""
        for delivery in self._running.values():
            entry = delivery.entry
            if delivery.has_started:
                keys = (entry.stream, self._names.mark(entry.call))
                self._runner.submit(queue_scripts.REASSERT, keys, (entry.entry_id, self._names.front, entry.number))
        for _, end_keys, arguments in self._ends:
            self._runner.submit(queue_scripts.FINISH, end_keys, arguments)

    def _keep_end(self, keys: Sequence[str], arguments: Sequence[Any]) -> None:
        now = time.monotonic()
        self._ends.append((now, keys, arguments))
        self._n_bytes += len(arguments[-1])
        while (
            self._ends[0][0] < now - RECENT_S
            or len(self._ends) > RECENT_ENDS
            or (self._n_bytes > RECENT_BYTES and len(self._ends) > 1)
        ):
            self._n_bytes -= len(self._ends.popleft()[2][-1])


def _give_up_lost(page: Sequence[Delivery], reply: Any) -> None:
    if not isinstance(reply, CorosrvError):
        for place in reply:
            if page[place].has_started:
                page[place].give_up()
