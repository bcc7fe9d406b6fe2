"""Queues the calls that wait for one key, and decides which of them may run as one batch, and when it starts."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice

from corosrv.contracts.jobs.infer import BatchLimits, InferRequest
from corosrv.contracts.jobs.terms import CLASSES
from corosrv.workers.dispatch.call import QueuedCall, Signature
from corosrv.workers.dispatch.entries import HandlerEntry
from corosrv.workers.dispatch.estimates import KeyTraffic, RunningMean
from corosrv.workers.dispatch.ledger import CallerAccount
from corosrv.workers.dispatch.queue import CallQueue, FairQueue, QueuePlace, band_of

MAX_SIGNATURES = 64  # that gather at once for one key; calls beyond run one by one
LONGEST_GAP = 10  # delays; a longer time without calls says no more than this


def signature_of(request: InferRequest) -> Signature:
    """Returns what the calls of one batch must share. The first dimension of a tensor is that of the batch."""
    return tuple((tensor.name, tensor.datatype, tensor.shape[1:], bool(tensor.shape)) for tensor in request.inputs)


class ArrivalGaps:
    """Follows the time between two calls, to tell whether another is likely to come soon."""

    __slots__ = ("_last", "_mean")

    def __init__(self) -> None:
        self._mean = RunningMean()
        self._last = -math.inf

    def add(self, now: float, delay: float) -> None:
        """Records an arrival. `delay`: seconds that a batch may gather."""
        self._mean.add(min(now - self._last, LONGEST_GAP * delay))
        self._last = now

    def is_another_likely(self, delay: float) -> bool:
        """Returns whether a call comes within `delay` with a probability of a half, if they come independently."""
        return self._mean.value is not None and delay > math.log(2) * self._mean.value


def ready_at(
    limits: BatchLimits, n_waiting: int, oldest: float, earliest: float, service: float | None, is_another_likely: bool
) -> float:
    """Returns when a batch is to start, if a permit is free then.

    `oldest`: when its first call arrived; `earliest`: the first deadline of its calls, until which `service` seconds of
    work must be left.
    """
    if n_waiting >= limits.max_size or not is_another_likely:
        return -math.inf
    return min(oldest + limits.max_delay_ms / 1000, earliest - (service or 0.0))


MAX_COMPARED = 256  # callers whose calls are counted to estimate how many are ahead
FEW_COMPARED = 16  # where a refusal says when to try again


class _Gathering(FairQueue[QueuedCall]):
    """Collects calls, of whatever callers, that may be handed over as one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.earliest = math.inf  # no call has an earlier deadline
        self._arrivals: deque[QueuePlace[QueuedCall]] = deque()

    def note(self, place: QueuePlace[QueuedCall]) -> None:
        """Takes the place of a call that has been added."""
        self.earliest = min(self.earliest, place.deadline)
        if len(self._arrivals) > 2 * len(self) + 64:
            self._arrivals = deque(other for other in self._arrivals if other.item is not None)
        if self._arrivals and place.arrived < self._arrivals[0].arrived:
            self._arrivals.appendleft(place)
        else:
            self._arrivals.append(place)

    def oldest(self) -> float | None:
        """Returns when the call arrived that was added first; None if there is none."""
        while self._arrivals and self._arrivals[0].item is None:
            self._arrivals.popleft()
        return self._arrivals[0].arrived if self._arrivals else None


class KeyQueue:
    """Keeps the central queue of one key, and counts its calls. The time is passed in; nothing waits.

    Calls of a handler with batches gather by what they must share, and are not handed over before their batch is ready.
    """

    def __init__(self, entry: HandlerEntry) -> None:
        self.entry = entry
        self.traffic = KeyTraffic()
        self.n_local = 0  # calls of this key in local queues
        self._n_central = 0  # calls that are here
        self._singles: FairQueue[QueuedCall] = FairQueue()
        self._gatherings: dict[Signature, _Gathering] = {}
        self._pinned: dict[str, FairQueue[QueuedCall]] = {}  # calls that one host alone may run, by its id
        self._gaps = ArrivalGaps()

    def __iter__(self) -> Iterator[QueuedCall]:
        for queue in self._queues():
            yield from queue

    def _queues(self) -> Iterator[FairQueue[QueuedCall]]:
        yield self._singles
        yield from self._gatherings.values()
        yield from self._pinned.values()

    @property
    def n_open(self) -> int:
        """The number of calls here that any host may run."""
        return self._n_central - sum(map(len, self._pinned.values()))

    def pinned(self) -> dict[str, list[QueuedCall]]:
        """Returns the calls that one host alone may run, by its id."""
        return {host_id: [*queue] for host_id, queue in self._pinned.items()}

    @property
    def depth(self) -> int:
        return self._n_central + self.n_local

    @property
    def gathers(self) -> bool:
        """True if it pays to let a call wait for others although a permit is free."""
        limits = self.entry.batch_limits
        return limits is not None and self._gaps.is_another_likely(limits.max_delay_ms / 1000)

    def count_arrival(self, now: float) -> None:
        self.traffic.rate.add(now)
        if (limits := self.entry.batch_limits) is not None:
            self._gaps.add(now, limits.max_delay_ms / 1000)

    def push(self, call: QueuedCall, now: float) -> None:
        """Adds a call, or lets one return with its original order."""
        self._n_central += 1
        call.queue = queue = self._queue_for(call)
        call.place = queue.push(
            call, call.account, call.job.terms.tier, call.priority, call.due, call.arrived, call.number, now,
            call.deadline,
        )  # fmt: skip
        if isinstance(queue, _Gathering):
            queue.note(call.place)

    def _queue_for(self, call: QueuedCall) -> FairQueue[QueuedCall]:
        if call.job.only_host:
            return self._pinned.setdefault(call.job.only_host, FairQueue())
        if call.is_single or self.entry.batch_limits is None:
            return self._singles
        if call.signature is None:
            call.signature = signature_of(call.job.request)
        gathering = self._gatherings.get(call.signature)
        if gathering is None:
            if len(self._gatherings) >= MAX_SIGNATURES:
                return self._singles
            gathering = self._gatherings[call.signature] = _Gathering()
        return gathering

    def remove(self, call: QueuedCall) -> None:
        queue = call.queue
        assert queue is not None
        assert call.place is not None
        self._n_central -= 1
        queue.remove(call.place)
        if not queue and call.job.only_host:
            del self._pinned[call.job.only_host]
        elif not queue and isinstance(queue, _Gathering):
            assert call.signature is not None
            del self._gatherings[call.signature]
        call.queue = call.place = None

    def head(self, now: float, host_id: str) -> QueuedCall | None:
        """Returns the next call that can be handed over to a host now; it stays."""
        if not self._n_central:
            return None
        self.entry.ledger.settle(now)
        needed = self._needed
        best = self._singles.head(now, needed)
        queues = [gathering for gathering in self._gatherings.values() if self._ready_at(gathering) <= now]
        for queue in (*queues, self._pinned.get(host_id)) if self._pinned else queues:
            if queue is not None and (place := queue.head(now, needed)) is not None:
                best = place if best is None else min(best, place, key=lambda place: place.rank)
        return None if best is None else best.item

    def lines(self) -> Iterator[CallQueue[QueuedCall]]:
        """Yields the lines of all callers: of each one of single calls, and one for each kind of batch and host."""
        for queue in self._queues():
            yield from queue.lines.values()

    def lines_of(self, account: CallerAccount) -> list[CallQueue[QueuedCall]]:
        return [line for queue in self._queues() if (line := queue.lines.get(account)) is not None]

    @property
    def _needed(self) -> float:
        """The seconds that a call should have left when it is started."""
        return self.traffic.times.longest if self.entry.predicts else 0.0

    def is_too_late(self, call: QueuedCall, now: float) -> bool:
        """Returns whether a call has less time left than half of its handler's calls take."""
        return self.entry.predicts and now + (self.traffic.times.median or 0.0) > call.deadline

    def may_start(self, call: QueuedCall, now: float) -> bool:
        """Returns whether a call is worth its permit now: it can end in time, or it is the one that tries that."""
        if not self.is_too_late(call, now):
            return True
        if not self.traffic.times.may_try(now):
            return False
        self.traffic.times.begin_trial()
        return True

    def wait(self, call: QueuedCall, n_more: int, now: float, n_compared: int = MAX_COMPARED) -> float:
        """Predicts the seconds until what is before a call, were it new, and `n_more`, have got their permits."""
        return self._wait_for(self.count_ahead(call, now, n_compared) + n_more, now)

    def longest_wait(self, now: float) -> float:
        """Predicts the wait of a new call that everything goes before."""
        return self._wait_for(self.depth + 1, now)

    def _wait_for(self, n_calls: int, now: float) -> float:
        limits = self.entry.batch_limits
        n_turns = math.ceil(n_calls / (1 if limits is None else limits.max_size))
        return self.traffic.times.wait(n_turns, self.entry.n_permits, self.entry.has_free, now)

    def take(self, head: QueuedCall, now: float) -> list[QueuedCall]:
        """Removes the call that `head` returned, and those that run in one batch with it, in their order."""
        calls = [head]
        queue, limits = head.queue, self.entry.batch_limits
        self.remove(head)
        while limits is not None and isinstance(queue, _Gathering) and queue and len(calls) < limits.max_size:
            place = queue.head(now, self._needed)
            assert place is not None
            assert place.item is not None
            if place.item.deadline <= now or self.is_too_late(place.item, now):
                break  # it must not run; whoever takes the next batch meets it first
            calls.append(place.item)
            self.remove(place.item)
        return calls

    def next_ready(self) -> float:
        """Returns when the next batch is ready; infinity if nothing gathers."""
        return min(map(self._ready_at, self._gatherings.values()), default=math.inf)

    def _ready_at(self, gathering: _Gathering) -> float:
        limits, oldest = self.entry.batch_limits, gathering.oldest()
        if limits is None or oldest is None:
            return -math.inf
        longest = self.traffic.times.longest
        return ready_at(limits, len(gathering), oldest, gathering.earliest, longest, self.gathers)

    def oldest(self) -> float | None:
        """Returns when the call arrived that has waited longest; None if none waits here."""
        times = (line.oldest() for line in self.lines())
        return min((time for time in times if time is not None), default=None)

    def classes(self, now: float) -> dict[int, int]:
        """Counts the calls that wait here by their class, 1 before 9."""
        counts: Counter[int] = Counter()
        for line in self.lines():
            line.head(now)
            for band, n_calls in line.counts().items():
                counts[band % CLASSES] += n_calls
        return dict(counts)

    def count_ahead(self, call: QueuedCall, now: float, n_compared: int = MAX_COMPARED) -> int:
        """Estimates how many calls a call comes after, were it new; of its caller, those of its own class as well.

        Of another caller they are those of better tiers, and as many of the same tier as start before that one has had
        as much as the call's caller will have had by then. A call that runs is taken to have half of its time left.
        Where there are more than `n_compared` others, so many stand for all.
        """
        self.entry.ledger.settle(now)
        own, tier = call.account, call.job.terms.tier
        seconds = self.traffic.service.value or 0.0
        own_lines = self.lines_of(own)
        n_others = sum(len(queue.lines) for queue in self._queues()) - len(own_lines)
        n_own = 0
        for line in own_lines:
            line.head(now)
            n_own += line.count_ahead(band_of(tier, call.priority, 0))
        had = _had_soon(own, seconds) + n_own * seconds / own.weight
        n_ahead = 0
        for line in islice((line for line in self.lines() if line.account is not own), n_compared):
            n_better, n_same = line.count_tiers(tier, now)
            if n_same and seconds:
                lag = had - _had_soon(line.account, seconds)
                # The first of those that are equal has come before.
                n_turns = math.floor(lag * line.account.weight / seconds + 1e-6) + 1
                n_same = min(n_same, max(n_turns, 0))
            n_ahead += n_better + n_same
        return self.n_local + n_own + n_ahead * n_others // max(min(n_others, n_compared), 1)


def _had_soon(account: CallerAccount, seconds: float) -> float:
    """Returns what a caller will have had when what runs has ended, of calls that take so many seconds each."""
    return account.virtual_s + account.permits * seconds / 2 / account.weight
