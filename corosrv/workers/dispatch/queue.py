"""Orders the calls that wait for one key.

Of different callers, the next is the one of the best tier that has had least of the permits, by its weight. Among one
caller's calls the order is priority class, then effective deadline, then arrival.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from corosrv.contracts.jobs.terms import CLASSES, FIRST_PRIORITY
from corosrv.workers.dispatch.ledger import CallerAccount

RISE_AFTER = 10.0  # seconds of waiting that lift a call by one priority class
RISES_OF_TIER = 3  # times that it has risen by then, for each tier
ORDER_AFTER = 1.0  # seconds after which all lines are looked at anew, for calls that have risen

T = TypeVar("T")

Order = tuple[int, float, int]  # band, effective deadline, number of arrival: the lowest is next
# Tier, seconds that the caller has had, permits that it holds, class, effective deadline, number of arrival.
Rank = tuple[int, float, float, int, float, int]


def band_of(tier: int, priority: int, n_rises: int) -> int:
    """Returns the tier and the priority class, in one number, of something that has risen so often."""
    if not n_rises:
        return tier * CLASSES + priority
    return max(tier - n_rises // RISES_OF_TIER, 0) * CLASSES + max(priority - n_rises, FIRST_PRIORITY)


def level_at(priority: int, arrived: float, now: float, tier: int = 0) -> int:
    """Returns the band of something that has waited since it arrived: in the first tier, its priority class."""
    return band_of(tier, priority, int((now - arrived) / RISE_AFTER))


def rank(account: CallerAccount, level: int, due_at: float, number: int) -> Rank:
    """Returns what calls of different callers are compared by."""
    return (
        level // CLASSES, account.virtual_s, account.permits / account.weight, level % CLASSES, due_at, number
    )  # fmt: skip


class QueuePlace(Generic[T]):
    """Marks the place of one item in a CallQueue; `item` is None once it has left."""

    __slots__ = (
        "account", "arrived", "deadline", "due", "item", "level", "n_rises", "number", "priority", "rises_at", "serial",
        "tier",
    )  # fmt: skip

    def __init__(
        self,
        item: T,
        account: CallerAccount,
        tier: int,
        priority: int,
        due_at: float,
        number: int,
        arrived: float,
        now: float,
        serial: int,
        deadline: float,
    ) -> None:
        self.item: T | None = item
        self.account = account
        self.tier = tier  # when it arrived, as its class
        self.priority = priority
        self.due = due_at
        self.number = number
        self.arrived = arrived
        self.n_rises = int((now - arrived) / RISE_AFTER)
        self.level = band_of(tier, priority, self.n_rises)
        self.rises_at = arrived + (self.n_rises + 1) * RISE_AFTER
        self.deadline = deadline
        self.serial = serial  # of the places of one queue, so that no two are equal

    @property
    def order(self) -> Order:
        """Compares with other places of the same caller, as long as both were looked at at the same time."""
        return self.level, self.due, self.number

    @property
    def rank(self) -> Rank:
        """Compares with the places of other callers and queues as well."""
        return rank(self.account, self.level, self.due, self.number)


_Heap = list[tuple[float, int, int, QueuePlace[T]]]


class CallQueue(Generic[T]):
    """Orders items of one caller by tier, priority class, effective deadline, and arrival.

    An item rises by one class for every RISE_AFTER seconds since it arrived, and by one tier for every RISES_OF_TIER of
    those. All operations take O(log n), spread over many. The time is passed in and never goes backwards. What has left
    is forgotten at once, though its place may linger in the heaps until it is met or half of them is dead.
    """

    def __init__(self, account: CallerAccount | None = None) -> None:
        self.account = account or CallerAccount()
        self.key: Rank | None = None  # by which it stands among other callers' lines
        self._levels: dict[int, _Heap[T]] = {}  # by band: by effective deadline and number
        self._risky: dict[int, _Heap[T]] = {}  # what `head` passed over, the latest deadline first
        self._counts: dict[int, int] = {}  # of the bands that have some
        self._bands: list[int] = []  # these, in their order
        self._rises: _Heap[T] = []  # by the time of the next rise and number
        self._tails: dict[int, _Heap[T]] = {}  # levels from their ends, of those that were asked for since `_compact`
        self._arrivals: deque[QueuePlace[T]] = deque()
        self._serials = itertools.count()
        self._n_live = 0
        self._n_dead = 0

    def __len__(self) -> int:
        return self._n_live

    def __iter__(self) -> Iterator[T]:
        """Yields the items, about in the order of their arrival. The queue must not change meanwhile."""
        return (place.item for place in self._arrivals if place.item is not None)

    def push(
        self,
        item: T,
        priority: int,
        due_at: float,
        arrived: float,
        number: int,
        now: float,
        deadline: float = math.inf,
        tier: int = 0,
    ) -> QueuePlace[T]:
        """Adds an item. `number`: of its arrival, unique; one that returns takes its former number and arrival.

        `deadline`: when it is of no use any more.
        """
        place = QueuePlace(
            item, self.account, tier, priority, due_at, number, arrived, now, next(self._serials), deadline
        )
        if self._arrivals and arrived < self._arrivals[0].arrived:
            self._arrivals.appendleft(place)
        else:
            self._arrivals.append(place)
        self._n_live += 1
        self._enter_level(place)
        return place

    def remove(self, place: QueuePlace[T]) -> None:
        """Removes an item by its place. Later calls do nothing."""
        if place.item is None:
            return
        place.item = None
        self._leave_level(place.level)
        self._n_live -= 1
        self._n_dead += 1
        if self._n_dead > self._n_live + 64:
            self._compact()

    def head(self, now: float, needed: float = 0.0) -> QueuePlace[T] | None:
        """Returns the place of the next item, which stays; None if there is none.

        Of one class, items that end within `needed` seconds come after all others, the one with the most time first.
        """
        if not self._n_live:
            return None
        self._rise(now)
        return self._first(self._bands[0], now + needed)

    def _first(self, level: int, risky_until: float) -> QueuePlace[T]:
        heap = self._levels[level]
        while heap:
            place = heap[0][3]
            if place.item is not None and place.level == level:
                if place.deadline >= risky_until:
                    return place
                risky = self._risky.setdefault(level, [])
                heapq.heappush(risky, (-place.deadline, place.number, place.serial, place))
            heapq.heappop(heap)
        risky = self._risky[level]
        while (place := risky[0][3]).item is None or place.level != level:
            heapq.heappop(risky)
        return place

    def last(self, now: float) -> QueuePlace[T] | None:
        """Returns the place of the last item of the worst class, which stays; None if there is none."""
        self._rise(now)
        if not self._n_live:
            return None
        level = self._bands[-1]
        tail = self._tail(level)
        while (place := tail[0][3]).item is None or place.level != level:
            heapq.heappop(tail)
        return place

    def _tail(self, level: int) -> _Heap[T]:
        if level not in self._tails:
            self._tails[level] = [_from_end(place) for place in self._arrivals if place.level == level]
            heapq.heapify(self._tails[level])
        return self._tails[level]

    def count_ahead(self, level: int) -> int:
        """Counts the items of this band and of those before it, as they stood when `head` was last called."""
        return sum(n for band, n in self._counts.items() if band <= level)

    def count_tiers(self, tier: int, now: float) -> tuple[int, int]:
        """Counts the items of better tiers, and those of this one. The queue has some."""
        if self._bands[-1] >= CLASSES:
            self._rise(now)
        first, last = self._bands[0] // CLASSES, self._bands[-1] // CLASSES
        if first == last:
            return (self._n_live if first < tier else 0), (self._n_live if first == tier else 0)
        n_better = self.count_ahead(tier * CLASSES)
        return n_better, self.count_ahead((tier + 1) * CLASSES) - n_better

    def counts(self) -> dict[int, int]:
        """Counts the items of each band that has some, as they stood when `head` was last called."""
        return self._counts

    def oldest(self) -> float | None:
        """Returns when the item arrived that was pushed first; None if there is none."""
        while self._arrivals and self._arrivals[0].item is None:
            self._arrivals.popleft()
        return self._arrivals[0].arrived if self._arrivals else None

    def _rise(self, now: float) -> None:
        while self._rises and self._rises[0][0] <= now:
            place = heapq.heappop(self._rises)[3]
            if place.item is not None:
                self._leave_level(place.level)
                place.n_rises += 1
                place.level = band_of(place.tier, place.priority, place.n_rises)
                place.rises_at += RISE_AFTER
                self._enter_level(place)

    def _enter_level(self, place: QueuePlace[T]) -> None:
        level = place.level
        if level in self._counts:
            self._counts[level] += 1
            heapq.heappush(self._levels[level], (place.due, place.number, place.serial, place))
        else:
            self._counts[level] = 1
            bisect.insort(self._bands, level)
            heapq.heappush(self._levels.setdefault(level, []), (place.due, place.number, place.serial, place))
        if level in self._tails:
            heapq.heappush(self._tails[level], _from_end(place))
        if level > FIRST_PRIORITY:
            heapq.heappush(self._rises, (place.rises_at, place.number, place.serial, place))

    def _leave_level(self, level: int) -> None:
        self._counts[level] -= 1
        if not self._counts[level]:
            del self._counts[level]
            self._bands.remove(level)

    def _compact(self) -> None:
        """Builds everything anew from the places that are taken."""
        places = [place for place in self._arrivals if place.item is not None]
        self._arrivals = deque(places)
        self._levels = {}
        self._risky = {}
        self._counts = {}
        self._bands = []
        self._rises = []
        self._tails = {}
        self._n_dead = 0
        for place in places:
            self._enter_level(place)


def _from_end(place: QueuePlace[T]) -> tuple[float, int, int, QueuePlace[T]]:
    """Returns what orders the places of one level from the last to the first."""
    return -place.due, -place.number, -place.serial, place


def _may_precede(place: QueuePlace[T], key: Rank) -> bool:
    """Returns whether an item may come before the one by whose rank its line stands among others."""
    return place.level < key[0] * CLASSES + key[3] or place.due <= key[4]


class FairQueue(Generic[T]):
    """Orders items of several callers: by tier, by what their callers have had (Ledger), and then as CallQueue does.

    Each caller has a line of its own. A caller that is charged comes later among the others when its line is next
    looked at; all lines are put into their order every ORDER_AFTER seconds, for what has risen. So an item is found in
    O(log n) of the callers.
    """

    def __init__(self) -> None:
        self.lines: dict[CallerAccount, CallQueue[T]] = {}  # by callers; none is empty
        # Lines by their keys. One whose key is another by now, or None, stands here in vain.
        self._heads: list[tuple[Rank, int, CallQueue[T]]] = []
        self._serials = itertools.count()  # of these entries, so that no two are equal
        self._orders_at = -math.inf
        self._n_items = 0

    def __len__(self) -> int:
        return self._n_items

    def __iter__(self) -> Iterator[T]:
        """Yields the items, those of one caller after the other."""
        return itertools.chain.from_iterable(self.lines.values())

    def push(
        self,
        item: T,
        account: CallerAccount,
        tier: int,
        priority: int,
        due_at: float,
        arrived: float,
        number: int,
        now: float,
        deadline: float = math.inf,
    ) -> QueuePlace[T]:
        """Adds an item of a caller; see CallQueue.push."""
        line = self.lines.get(account)
        if line is None:
            line = self.lines[account] = CallQueue(account)
        self._n_items += 1
        place = line.push(item, priority, due_at, arrived, number, now, deadline, tier)
        if now < self._orders_at and (line.key is None or _may_precede(place, line.key)):
            self._note(line, place.rank)
        return place

    def _note(self, line: CallQueue[T], key: Rank) -> None:
        """Moves a line forward to the rank of one of its items, if that is earlier."""
        if line.key is None or key < line.key:
            line.key = key
            heapq.heappush(self._heads, (key, next(self._serials), line))
            if len(self._heads) > 2 * len(self.lines) + 64:
                self._orders_at = -math.inf

    def remove(self, place: QueuePlace[T]) -> None:
        """Removes an item by its place. Later calls do nothing."""
        if place.item is None:
            return
        self._n_items -= 1
        line = self.lines[place.account]
        line.remove(place)
        if not line:
            line.key = None
            del self.lines[place.account]
            if len(self.lines) < 2:
                self._orders_at = -math.inf
                self._heads.clear()

    def head(self, now: float, needed: float = 0.0) -> QueuePlace[T] | None:
        """Returns the place of the next item, which stays; None if there is none. `needed`: see CallQueue.head."""
        if len(self.lines) < 2:
            for line in self.lines.values():
                return line.head(now, needed)
            return None
        if now >= self._orders_at:
            self._order(now, needed)
        while True:
            key, serial, line = self._heads[0]
            if line.key is not key:
                heapq.heappop(self._heads)
                continue
            place = line.head(now, needed)
            assert place is not None
            if (line_key := place.rank) == key:
                return place
            line.key = line_key
            heapq.heapreplace(self._heads, (line_key, serial, line))

    def _order(self, now: float, needed: float) -> None:
        self._heads = []
        for line in self.lines.values():
            place = line.head(now, needed)
            assert place is not None
            line.key = place.rank
            self._heads.append((line.key, next(self._serials), line))
        heapq.heapify(self._heads)
        self._orders_at = now + ORDER_AFTER
