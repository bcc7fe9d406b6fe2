"""Shares the permits of workers with other fronts: takes them from Redis, keeps them by beats, and gives them back.

The calls themselves stay where they were accepted. `PermitShare` says how many permits of one worker this front holds,
and `PermitShares` asks for more while calls wait, and gives back what others wait for.
"""

from __future__ import annotations

import hashlib
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import gevent
import msgspec
from gevent.event import Event

from corosrv.base.errors import CorosrvError
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.group_aborts import Subscription
from corosrv.fleet.cluster.namespace import BEAT, LEASE_MS, SYNC, KeyNames
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.waiting import QueueClaim

if TYPE_CHECKING:
    from corosrv.fleet.upstreams.upstream import Upstream

log = logging.getLogger("corosrv.cluster")

ASK_AGAIN = 0.1  # seconds after which a front asks anew while calls wait, should a notice have been lost
LEAST_GAP = 0.002  # seconds between two runs of the script
RETRY_PAUSE = 0.2  # seconds after one that failed
MAX_ARRIVALS = 4096  # numbers of arrivals that are remembered
_NOBODY = QueueClaim(0, 0, "", 1.0, 0)


class PermitShare:
    """Counts the permits of one worker that this front holds. Belongs to the hub's thread; nothing waits.

    A worker that comes while an older one at the same address drains shares its permits.
    """

    def __init__(self, resource: str, wake: Callable[[], None]) -> None:
        self.resource = resource
        self.held: int | None = 0  # None: this front is alone, and uses all
        self.part = 0  # its even part, which it keeps while nobody waits
        self.is_contested = False  # the first that waits for it is another front's
        self.is_due = True  # there is something to say or to ask
        self.is_leaving = False
        self.claim = _NOBODY  # as Redis knows it
        self._workers: list[Upstream] = []
        self._wake = wake

    def add(self, worker: Upstream) -> None:
        self._workers = [other for other in self._workers if other.permits.n_held]
        self._workers.append(worker)
        worker.permits.on_end = self._on_end
        self._limit()

    @property
    def worker(self) -> Upstream:
        return self._workers[-1]

    @property
    def used(self) -> int:
        return sum(worker.permits.n_held for worker in self._workers)

    @property
    def idle(self) -> int:
        return 0 if self.held is None else max(self.held - self.used, 0)

    def callers(self) -> Counter[str]:
        """Counts the running calls by a hash of their caller."""
        counts: Counter[str] = Counter()
        for worker in self._workers:
            for caller, count in worker.callers().items():
                counts[share_of(caller)] += count
        return counts

    def give_back(self, n_permits: int) -> None:
        """Holds fewer, from now on."""
        if self.held is not None and n_permits > 0:
            self.held -= n_permits
            self._limit()

    def receive(self, n_permits: int) -> None:
        """Holds so many from now on; more of them may run waiting calls at once."""
        is_more = self.held is None or n_permits > self.held
        self.held = n_permits
        self._limit()
        if is_more:
            self.worker.changed()

    def be_alone(self) -> None:
        """Uses all permits, as no other front is known."""
        self.held = None
        self._limit()
        self.worker.changed()

    def _limit(self) -> None:
        permits = self.worker.permits
        permits.limit = None if self.held is None else max(self.held - self.used + permits.n_held, 0)

    def _on_end(self) -> None:
        """Takes the end of a call: its permit goes to whoever is first, of all fronts."""
        if self.is_contested and self.idle:
            self.give_back(1)
            self.is_due = True
            self._wake()
        elif len(self._workers) > 1:
            self._limit()


def share_of(caller: str) -> str:
    """Returns a short name for a caller, from which nobody learns who it is."""
    return hashlib.blake2b(caller.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest() if caller else ""


class ArrivalStamps:
    """Remembers when calls came, by a number that counts in Redis for all fronts, and by no clock."""

    def __init__(self) -> None:
        self._numbers: list[int] = []  # of the last call that was known at each stamp
        self._stamps: list[int] = []

    def note(self, last_number: int, stamp: int) -> None:
        """Records the stamp of all calls up to a number that have none."""
        if self._numbers and self._numbers[-1] >= last_number:
            return
        self._numbers.append(last_number)
        self._stamps.append(stamp)
        if len(self._numbers) > 2 * MAX_ARRIVALS:
            del self._numbers[:MAX_ARRIVALS], self._stamps[:MAX_ARRIVALS]

    def stamp(self, number: int) -> int:
        """Returns a call's stamp; 0 if it has none yet."""
        place = bisect_left(self._numbers, number)
        return self._stamps[place] if place < len(self._numbers) else 0

    def clear(self) -> None:
        self._numbers.clear()
        self._stamps.clear()


class PermitShares:
    """Owns what this front holds of all workers. Belongs to the hub's thread; only its greenlet waits, and `close`."""

    def __init__(self, client: RedisClient, names: KeyNames, front: str, source: Dispatcher) -> None:
        self._client = client
        self._names = names
        self._front = front
        self._source = source
        self._script = client.script(SYNC)
        self._shares: dict[str, PermitShare] = {}  # by their hashes in Redis
        self._by_worker: dict[str, PermitShare] = {}  # by the ids of workers
        self._arrivals = ArrivalStamps()
        self._epoch = b""
        self._n_runs = 0  # of the script, each with its number: no front has had this one's id before
        self._is_alone = False
        self._beats_at = 0.0
        self._news = Event()
        self._notices = Subscription(client, {self._channel + front: self._on_notice})
        self._greenlet: gevent.Greenlet | None = None
        source.on_wait(self._on_wait)
        client.health.on_change(self._on_link)

    @property
    def shares(self) -> Iterable[PermitShare]:
        return self._shares.values()

    def lend(self, resource: str, worker: Upstream) -> None:
        """Shares the permits of a worker from now on; `resource`: its name in all fronts."""
        key = self._names.name("permits", resource)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = PermitShare(resource, self._news.set)
            share.held = None if self._is_alone else 0
        share.add(worker)
        share.is_due = True
        share.is_leaving = False
        self._by_worker = {id: other for id, other in self._by_worker.items() if other is not share}
        self._by_worker[worker.id] = share
        self._news.set()

    def forget(self, worker: Upstream) -> None:
        """Gives the permits of a worker back that is gone."""
        share = self._by_worker.pop(worker.id, None)
        if share is not None and share.worker is worker:
            share.is_leaving = share.is_due = True
            self._news.set()

    def be_alone(self) -> None:
        """Uses all permits until Redis has told which are this front's: it never heard of any other."""
        self._is_alone = True
        for share in self._shares.values():
            share.be_alone()

    def start(self) -> None:
        """Begins to share."""
        self._notices.start()
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Gives everything back, if Redis answers. Twice is harmless."""
        if self._greenlet is None:
            return
        self._greenlet.kill(block=False)
        self._greenlet = None
        self._notices.close()
        if self._client.health.is_up and self._shares:
            try:
                for share in self._shares.values():
                    share.is_leaving = True
                self._ask(list(self._shares.items()), n_waiting=-1)
            except CorosrvError as error:
                log.debug("the permits of this front come back within %d ms: %s", LEASE_MS, error)

    # What happens.

    def _on_wait(self, call: QueuedCall) -> None:
        """Asks for a permit, unless one was asked for by a call that goes before this one."""
        band = call.level(time.monotonic())
        for group in call.offer.groups:
            share = self._by_worker.get(group.host.id)
            if share is not None and (not share.claim.n_calls or band < share.claim.band):
                share.is_due = True
                self._news.set()

    def _on_notice(self, data: bytes) -> None:
        """Takes the name of a resource of which others want something, or of which something is free."""
        if (share := self._shares.get(data.decode("utf-8", "replace"))) is not None:
            share.is_due = True
            self._news.set()

    def _on_link(self, is_up: bool) -> None:
        """Uses what it holds while Redis is away, whoever waits; tells all of it when Redis is back."""
        self._beats_at = 0.0
        if is_up:
            self._news.set()
        else:
            for share in self._shares.values():
                share.is_contested = False

    def _run(self) -> None:
        while True:
            self._news.wait(self._pause())
            self._news.clear()
            if not self._client.health.is_up:
                gevent.sleep(RETRY_PAUSE)
                continue
            try:
                self._sync()
                gevent.sleep(LEAST_GAP)
            except CorosrvError as error:
                log.debug("permits could not be shared: %s", error)
                self._on_link(False)
                gevent.sleep(RETRY_PAUSE)
            except Exception:
                log.exception("permits could not be shared, by a bug")
                gevent.sleep(RETRY_PAUSE)

    def _pause(self) -> float:
        is_waiting = any(share.claim.n_calls for share in self._shares.values())
        until_beat = max(self._beats_at - time.monotonic(), 0.0)
        return min(until_beat, ASK_AGAIN) if is_waiting else until_beat

    def _sync(self) -> None:
        is_beat = time.monotonic() >= self._beats_at
        if is_beat:
            self._beats_at = time.monotonic() + BEAT
        due_shares = [
            (key, share)
            for key, share in self._shares.items()
            if is_beat or share.is_due or share.claim.n_calls or share.is_contested
        ]
        if due_shares:
            self._ask(due_shares, self._source.n_waiting)

    def _ask(self, due_shares: Sequence[tuple[str, PermitShare]], n_waiting: int) -> None:
        """Runs the script for some shares, and takes what it grants. Waits. Raises RedisUnavailable, RedisRefused."""
        self._n_runs += 1
        last_number, sent = self._source.last_number, []
        words = []
        for _, share in due_shares:
            share.is_due = False
            self._trim(share)
            share.claim = claim = self._source.claim(share.worker.id) or _NOBODY
            held = share.used if share.held is None else max(share.held, share.used)
            sent.append(held)
            n_calls = -1 if share.is_leaving else min(claim.n_calls, share.worker.concurrency)
            words.append(
                (share.worker.concurrency, held, share.used, n_calls, claim.band, share_of(claim.caller), claim.weight,
                 self._arrivals.stamp(claim.number), share.callers())
            )  # fmt: skip
        arguments = (
            *(self._front, self._epoch, LEASE_MS, int(BEAT * 1000), self._channel),
            *(n_waiting, msgspec.msgpack.encode(words), self._n_runs),
        )
        names = self._names.name
        keys = [names("permits"), names("permits", "run", self._front), *(key for key, _ in due_shares)]
        epoch, stamp, hold, *replies = self._script.run(keys, arguments)
        if epoch != self._epoch:
            self._epoch = epoch
            self._arrivals.clear()
        self._arrivals.note(last_number, stamp)
        self._is_alone = False
        for (key, share), held, reply in zip(due_shares, sent, replies, strict=True):
            if share.is_leaving:
                self._shares.pop(key, None)
                continue
            self._take(share, held, reply, is_held_back=hold > 0)

    def _trim(self, share: PermitShare) -> None:
        """Gives back what is idle, if others wait; or what is more than its part."""
        if share.is_contested:
            share.give_back(share.idle)
        elif share.held is not None and share.held > share.part:
            share.give_back(min(share.idle, share.held - share.part))

    def _take(self, share: PermitShare, n_said: int, reply: Sequence[Any], *, is_held_back: bool) -> None:
        """Takes the answer for one share, some of whose permits may have been given back meanwhile."""
        held, rivals, part = reply
        share.is_contested = bool(rivals) and not is_held_back
        share.part = max(part, n_said) if is_held_back else part
        granted = held - n_said
        share.receive(held if share.held is None else share.held + granted)
        if share.idle and (share.is_contested or (share.held or 0) > share.part):
            share.is_due = True
            self._news.set()

    @property
    def _channel(self) -> str:
        return self._names.name("permits", "of", "")
