"""Takes calls out of a shared queue: as many as can start here, and those of fronts that are gone."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gevent
from gevent.event import Event

from corosrv.base.errors import CorosrvError, WorkerLost
from corosrv.contracts.jobs.infer import HandlerCard, InferJob, InferReader
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.call_codec import SharedEnd, encode_end
from corosrv.fleet.cluster.delivery import Delivered, DeliveredCalls
from corosrv.fleet.cluster.health import LinkHealth
from corosrv.fleet.cluster.queue_names import Band, BandTurns, QueueNames, QueueTiming
from corosrv.fleet.cluster.script_runner import ScriptRunner
from corosrv.workers.dispatch.waiting import FreePermits

log = logging.getLogger("corosrv.cluster")

LOOK_INTERVAL = 1.0  # seconds between two looks at the queues, if nobody rings
PULL_AT_ONCE = 64  # entries
CLAIM_AT_ONCE = 16  # entries of one stream, of which each may wait here for a permit

LOST_END = encode_end(SharedEnd(error=WorkerLost("the server that ran the call was lost, and the call may have run")))
DEAD_END = encode_end(SharedEnd(error=WorkerLost("the call was given up: every server that took it was lost")))


class SharedDispatcher(Protocol):
    """The part of a dispatcher that the shared queue uses."""

    def free_permits(self) -> FreePermits: ...

    def card_of(self, key: str) -> HandlerCard | None: ...

    def known_keys(self) -> Sequence[str]: ...

    def submit_here(self, job: InferJob) -> InferReader: ...


class QueueConsumer:
    """Reads the queues of one dispatcher's keys. Belongs to the hub's thread; only its greenlet waits."""

    def __init__(
        self,
        domain: str,
        dispatcher: SharedDispatcher,
        names: QueueNames,
        runner: ScriptRunner,
        health: LinkHealth,
        deliveries: DeliveredCalls,
        timing: QueueTiming,
        on_epoch: Callable[[bytes], None],
    ) -> None:
        """`on_epoch`: called with the id of Redis' run whenever one is read."""
        self.backlogs: Counter[str] = Counter()  # entries that nobody has read, by key, as last seen
        self.is_claim_due = False
        self._domain = domain
        self._dispatcher = dispatcher
        self._names = names
        self._runner = runner
        self._health = health
        self._deliveries = deliveries
        self._timing = timing
        self._on_epoch = on_epoch
        self._turns = BandTurns()
        self._reserved: Counter[frozenset[str]] = Counter()  # permits for entries that are on their way
        self._looks_at: dict[frozenset[str], float] = {}  # when the queues of these keys are looked at unasked
        self._counts_at = 0.0
        self._holds_until = 0.0  # after a restart of Redis
        self._news = Event()
        self._is_stopping = False
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """Takes nothing more out of the queue; what runs goes on."""
        self._is_stopping = True

    def close(self) -> None:
        self.stop()
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def has_unreserved(self, key: str) -> bool:
        """Tells whether a permit is free that no entry is on its way for."""
        free = sum(n for keys, n in self._dispatcher.free_permits().items() if key in keys)
        return free > sum(n for keys, n in self._reserved.items() if key in keys)

    def on_free(self) -> None:
        """Learns that permits may be free."""
        if self.backlogs:
            self._news.set()

    def on_bell(self, name: str, is_idle: bool) -> None:
        """Learns that an entry has come into a queue; `is_idle`: that one may be claimed."""
        domain, _, key = name.partition("|")
        if domain == self._domain and self._dispatcher.card_of(key) is not None:
            self.backlogs[key] = max(self.backlogs[key], 1)
            self.is_claim_due = self.is_claim_due or is_idle
            self._news.set()

    def streams(self) -> list[str]:
        """Returns the streams of all keys that the dispatcher knows."""
        return [name for key in self._dispatcher.known_keys() for name in self._names.streams(self._domain, key)]

    def _run(self) -> None:
        while not self._is_stopping:
            self._news.wait(LOOK_INTERVAL)
            self._news.clear()
            try:
                if self._health.is_up and time.monotonic() >= self._holds_until:
                    self._take()
            except CorosrvError as error:
                log.debug("the shared queue cannot be read: %s", error)
            except Exception:
                log.exception("the shared queue failed by a bug")

    def _take(self) -> None:
        if self.is_claim_due:
            self._claim_all()
        now = time.monotonic()
        free = self._dispatcher.free_permits()
        for keys, n_free in free.items():
            n_wanted = min(n_free - self._reserved[keys], PULL_AT_ONCE)
            is_due = now >= self._looks_at.get(keys, now) or any(key in self.backlogs for key in keys)
            if n_wanted > 0 and is_due and not self._is_stopping:
                self._pull(keys, n_wanted)
        self._looks_at = {keys: self._looks_at.get(keys, now) for keys in free}
        if now >= self._counts_at:
            self._counts_at = now + LOOK_INTERVAL
            for key in list(self.backlogs):
                self._pull(frozenset({key}), 0)  # what others have taken is not told

    def _pull(self, keys: frozenset[str], n_wanted: int) -> None:
        """Reads as many entries as there are permits for them, and starts them. Waits."""
        ordered = sorted(keys)
        names = [self._names.stream(self._domain, key, band) for band in Band for key in ordered]
        arguments = (
            *(self._names.front, n_wanted, self._turns.n_low(n_wanted), self._timing.hold_ms),
            *(self._names.bodies, self._names.dead_letters),
        )
        self._reserved[keys] += n_wanted
        n_left = n_wanted
        try:
            epoch, hold, now, entries, waiting, n_strange = self._runner.run(
                queue_scripts.PULL, (self._names.epoch, *names), arguments
            )
            self._on_epoch(epoch)
            self._looks_at[keys] = time.monotonic() + LOOK_INTERVAL
            self._holds_until = time.monotonic() + hold / 1000
            self._note_backlogs(ordered, waiting)
            if n_strange:
                words = "%d entries of the shared queue were no calls, and are in %s now"
                log.warning(words, n_strange, self._names.dead_letters)
            self._turns.count([Band(entry[0] // len(ordered)) for entry in entries])
            for entry in entries:
                n_left -= 1
                key = ordered[entry[0] % len(ordered)]
                self._begin(key, names[entry[0]], entry, int(now), lambda: self._unreserve(keys, 1))
            if entries and len(entries) == n_wanted:
                self._news.set()
        finally:
            self._unreserve(keys, n_left)

    def _unreserve(self, keys: frozenset[str], n_permits: int) -> None:
        self._reserved[keys] -= n_permits
        if not self._reserved[keys]:
            del self._reserved[keys]

    def _note_backlogs(self, keys: Sequence[str], waiting: Sequence[int]) -> None:
        for place, key in enumerate(keys):
            if n_waiting := sum(waiting[place :: len(keys)]):
                self.backlogs[key] = n_waiting
            else:
                del self.backlogs[key]

    def _begin(self, key: str, stream: str, entry: Sequence[Any], now: int, on_start: Callable[[], None]) -> None:
        _, entry_id, number, call, front, deadline, body = entry
        remaining = (int(deadline) - now) / 1000 if int(deadline) else None
        delivered = Delivered(
            self._domain, key, stream, entry_id.decode(), number, call.decode(), front.decode(), remaining, body
        )
        card = self._dispatcher.card_of(key)
        if card is None:  # its last worker has left meanwhile
            self._deliveries.return_entry(delivered)
            on_start()
        else:
            self._deliveries.begin(delivered, card, self._dispatcher.submit_here, on_start)

    # Entries of fronts that are gone.

    def _claim_all(self) -> None:
        """Takes the entries over that no front has renewed for long."""
        self.is_claim_due = False
        for key in self._dispatcher.known_keys():
            if self._dispatcher.card_of(key) is not None:
                for stream in self._names.streams(self._domain, key):
                    self._claim(key, stream)

    def _claim(self, key: str, stream: str) -> None:
        cursor = b"0-0"
        while not self._is_stopping:
            arguments = (
                *(self._names.front, self._timing.claim_ms, cursor, CLAIM_AT_ONCE),
                *(self._names.marks, self._names.bodies, self._names.front_streams, LOST_END, DEAD_END),
            )
            cursor, now, entries = self._runner.run(queue_scripts.CLAIM, (stream, self._names.dead_letters), arguments)
            for entry in entries:
                self._begin(key, stream, entry, int(now), lambda: None)
            if cursor == b"0-0":
                return
