"""Queues the calls that wait for one key."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry
from corosrv.workers.dispatch.estimates import KeyTraffic
from corosrv.workers.dispatch.queue import MAX_SIGNATURES, ArrivalGaps, CallQueue, Signature, ready_at, signature_of


class _Gathering(CallQueue[QueuedCall]):
    """Collects calls that may be handed over as one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.earliest = math.inf  # no call has an earlier deadline


class KeyQueue:
    """Keeps the central queue of one key, and counts its calls. The time is passed in; nothing waits.

    Calls of a handler with batches gather by what they must share, and are not handed over before their batch is ready.
    """

    def __init__(self, entry: HandlerEntry) -> None:
        self.entry = entry
        self.traffic = KeyTraffic()
        self.n_local = 0  # calls of this key in local queues
        self._n_central = 0  # calls that are here
        self._singles: CallQueue[QueuedCall] = CallQueue()
        self._gatherings: dict[Signature, _Gathering] = {}
        self._gaps = ArrivalGaps()

    def __len__(self) -> int:
        """Returns the number of calls here, without those of local queues."""
        return self._n_central

    def __iter__(self) -> Iterator[QueuedCall]:
        yield from self._singles
        for gathering in self._gatherings.values():
            yield from gathering

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
        call.line = self._line_for(call)
        call.place = call.line.push(call, call.priority, call.due, call.arrived, call.number, now, call.deadline)

    def _line_for(self, call: QueuedCall) -> CallQueue[QueuedCall]:
        if call.is_single or self.entry.batch_limits is None:
            return self._singles
        if call.signature is None:
            call.signature = signature_of(call.job.request)
        gathering = self._gatherings.get(call.signature)
        if gathering is None:
            if len(self._gatherings) >= MAX_SIGNATURES:
                return self._singles
            gathering = self._gatherings[call.signature] = _Gathering()
        gathering.earliest = min(gathering.earliest, call.deadline)
        return gathering

    def remove(self, call: QueuedCall) -> None:
        assert call.line is not None
        assert call.place is not None
        self._n_central -= 1
        call.line.remove(call.place)
        if not call.line and call.line is not self._singles:
            assert call.signature is not None
            del self._gatherings[call.signature]
        call.line = call.place = None

    def head(self, now: float) -> QueuedCall | None:
        """Returns the next call that can be handed over now; it stays."""
        needed = self._needed
        best = self._singles.head(now, needed)
        for line in self._gatherings.values():
            if self._ready_at(line) <= now and (place := line.head(now, needed)) is not None:
                best = place if best is None else min(best, place, key=lambda place: place.order)
        return None if best is None else best.item

    def last(self, now: float) -> QueuedCall | None:
        """Returns the last call of the worst class; it stays."""
        lines = (self._singles, *self._gatherings.values())
        places = [place for line in lines if (place := line.last(now)) is not None]
        return max(places, key=lambda place: place.order).item if places else None

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

    def wait(self, priority: int, n_more: int, now: float) -> float:
        """Predicts the seconds until what is before a new call of a class, and `n_more`, have got their permits."""
        limits = self.entry.batch_limits
        n_turns = math.ceil((self.count_ahead(priority, now) + n_more) / (1 if limits is None else limits.max_size))
        return self.traffic.times.wait(n_turns, self.entry.n_permits, self.entry.has_free, now)

    def take(self, head: QueuedCall, now: float) -> list[QueuedCall]:
        """Removes the call that `head` returned, and those that run in one batch with it, in their order."""
        calls = [head]
        line, limits = head.line, self.entry.batch_limits
        self.remove(head)
        while limits is not None and line is not self._singles and line and len(calls) < limits.max_size:
            place = line.head(now, self._needed)
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

    def _ready_at(self, line: _Gathering) -> float:
        limits, oldest = self.entry.batch_limits, line.oldest()
        if limits is None or oldest is None:
            return -math.inf
        return ready_at(limits, len(line), oldest, line.earliest, self.traffic.times.longest, self.gathers)

    def oldest(self) -> float | None:
        """Returns when the call arrived that has waited longest; None if none waits here."""
        times = [line.oldest() for line in (self._singles, *self._gatherings.values())]
        return min((time for time in times if time is not None), default=None)

    def classes(self, now: float) -> dict[int, int]:
        """Counts the calls that wait here by their class, 1 before 9."""
        counts: Counter[int] = Counter()
        for line in (self._singles, *self._gatherings.values()):
            line.head(now)
            counts.update(line.counts())
        return dict(counts)

    def count_ahead(self, priority: int, now: float) -> int:
        """Counts the calls that a new one of this class comes after, those of its own class among them."""
        n_ahead = self.n_local
        for line in (self._singles, *self._gatherings.values()):
            line.head(now)
            n_ahead += line.count_ahead(priority)
        return n_ahead
