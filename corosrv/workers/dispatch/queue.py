"""Orders the calls that wait for one key, bounds how many wait, and decides when a batch of them starts.

The order is priority class, then effective deadline, then arrival. The bounds on calls and bytes count over all queues
of a front.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from corosrv.base.errors import QueueFull
from corosrv.base.retry_after import retry_seconds
from corosrv.contracts.jobs.infer import BatchLimits, InferRequest
from corosrv.contracts.jobs.terms import FIRST_PRIORITY, LAST_PRIORITY
from corosrv.workers.dispatch.estimates import RunningMean


@dataclass(slots=True)
class QueueBounds:
    """Counts the calls that wait and the bytes of their tensors, over all queues of a front."""

    max_calls: int = 4096
    max_bytes: int = 256 << 20
    n_calls: int = 0
    n_bytes: int = 0

    def problem(
        self, depth: int, max_depth: int, n_bytes: int, n_leaving: int = 0, bytes_leaving: int = 0
    ) -> str | None:
        """Returns why another call of so many bytes cannot wait in a queue of this depth; None if it can.

        `n_leaving`, `bytes_leaving`: calls and bytes that leave before; those of this queue are not in `depth`.
        """
        if depth >= max_depth:
            return f"{depth} calls wait for it, which is the limit"
        if self.n_calls - n_leaving >= self.max_calls:
            return f"{self.n_calls} calls wait here, which is the limit"
        if self.n_bytes - bytes_leaving + n_bytes > self.max_bytes:
            return f"the tensors of waiting calls would exceed {self.max_bytes} bytes"
        return None

    def add(self, n_bytes: int) -> None:
        self.n_calls += 1
        self.n_bytes += n_bytes

    def remove(self, n_bytes: int) -> None:
        self.n_calls -= 1
        self.n_bytes -= n_bytes


def queue_full(name: str, problem: str, wait: float) -> QueueFull:
    """Makes the refusal of a call, which says after how many seconds there should be room. `wait`: predicted."""
    error = QueueFull(f"{name} cannot be queued: {problem}; try again")
    error.retry_after = retry_seconds(wait)
    return error


# Names, datatypes and non-batch dimensions of the inputs. The model and its version are those of the queue.
Signature = tuple[tuple[str, str, tuple[int, ...], bool], ...]

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


RISE_AFTER = 10.0  # seconds of waiting that lift a call by one priority class

T = TypeVar("T")

Order = tuple[int, float, int]  # class, effective deadline, number of arrival: the lowest is next


def level_at(priority: int, arrived: float, now: float) -> int:
    """Returns the priority class of something that has waited since it arrived."""
    return max(priority - int((now - arrived) / RISE_AFTER), FIRST_PRIORITY)


class QueuePlace(Generic[T]):
    """Marks the place of one item in a CallQueue; `item` is None once it has left."""

    __slots__ = ("arrived", "deadline", "due", "item", "level", "number", "rises_at", "serial")

    def __init__(
        self,
        item: T,
        level: int,
        due_at: float,
        number: int,
        arrived: float,
        rises_at: float,
        serial: int,
        deadline: float,
    ) -> None:
        self.item: T | None = item
        self.level = level
        self.due = due_at
        self.number = number
        self.arrived = arrived
        self.rises_at = rises_at
        self.deadline = deadline
        self.serial = serial  # of the places of one queue, so that no two are equal

    @property
    def order(self) -> Order:
        """Compares with the places of other queues, too, as long as both were looked at at the same time."""
        return self.level, self.due, self.number


_Heap = list[tuple[float, int, int, QueuePlace[T]]]


class CallQueue(Generic[T]):
    """Orders items by their priority class, then their effective deadline, then their arrival.

    An item rises by one class for every RISE_AFTER seconds since it arrived. All operations take O(log n), spread over
    many. The time is passed in and never goes backwards. What has left is forgotten at once, though its place may
    linger in the heaps until it is met or half of them is dead.
    """

    def __init__(self) -> None:
        self._levels: list[_Heap[T]] = [[] for _ in range(LAST_PRIORITY + 1)]  # by effective deadline and number
        self._risky: list[_Heap[T]] = [[] for _ in self._levels]  # what `head` passed over, the latest deadline first
        self._counts = [0] * (LAST_PRIORITY + 1)
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
    ) -> QueuePlace[T]:
        """Adds an item. `number`: of its arrival, unique; one that returns takes its former number and arrival.

        `deadline`: when it is of no use any more.
        """
        level = level_at(priority, arrived, now)
        place = QueuePlace(
            item,
            level,
            due_at,
            number,
            arrived,
            arrived + (priority - level + 1) * RISE_AFTER,
            next(self._serials),
            deadline,
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
        self._counts[place.level] -= 1
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
        for level in range(FIRST_PRIORITY, LAST_PRIORITY + 1):
            if self._counts[level]:
                return self._first(level, now + needed)
        return None

    def _first(self, level: int, risky_until: float) -> QueuePlace[T]:
        heap, risky = self._levels[level], self._risky[level]
        while heap:
            place = heap[0][3]
            if place.item is not None and place.level == level:
                if place.deadline >= risky_until:
                    return place
                heapq.heappush(risky, (-place.deadline, place.number, place.serial, place))
            heapq.heappop(heap)
        while (place := risky[0][3]).item is None or place.level != level:
            heapq.heappop(risky)
        return place

    def last(self, now: float) -> QueuePlace[T] | None:
        """Returns the place of the last item of the worst class, which stays; None if there is none."""
        self._rise(now)
        for level in range(LAST_PRIORITY, FIRST_PRIORITY - 1, -1):
            if self._counts[level]:
                tail = self._tail(level)
                while (place := tail[0][3]).item is None or place.level != level:
                    heapq.heappop(tail)
                return place
        return None

    def _tail(self, level: int) -> _Heap[T]:
        if level not in self._tails:
            self._tails[level] = [_from_end(place) for place in self._arrivals if place.level == level]
            heapq.heapify(self._tails[level])
        return self._tails[level]

    def count_ahead(self, priority: int) -> int:
        """Counts the items of this class and of those before it, as they stood when `head` was last called."""
        return sum(self._counts[FIRST_PRIORITY : priority + 1])

    def counts(self) -> dict[int, int]:
        """Counts the items of each class that has some, as they stood when `head` was last called."""
        return {level: n for level, n in enumerate(self._counts) if n}

    def oldest(self) -> float | None:
        """Returns when the item arrived that was pushed first; None if there is none."""
        while self._arrivals and self._arrivals[0].item is None:
            self._arrivals.popleft()
        return self._arrivals[0].arrived if self._arrivals else None

    def _rise(self, now: float) -> None:
        while self._rises and self._rises[0][0] <= now:
            place = heapq.heappop(self._rises)[3]
            if place.item is not None:
                self._counts[place.level] -= 1
                place.level -= 1
                place.rises_at += RISE_AFTER
                self._enter_level(place)

    def _enter_level(self, place: QueuePlace[T]) -> None:
        self._counts[place.level] += 1
        heapq.heappush(self._levels[place.level], (place.due, place.number, place.serial, place))
        if place.level in self._tails:
            heapq.heappush(self._tails[place.level], _from_end(place))
        if place.level > FIRST_PRIORITY:
            heapq.heappush(self._rises, (place.rises_at, place.number, place.serial, place))

    def _compact(self) -> None:
        """Builds everything anew from the places that are taken."""
        places = [place for place in self._arrivals if place.item is not None]
        self._arrivals = deque(places)
        self._levels = [[] for _ in self._levels]
        self._risky = [[] for _ in self._levels]
        self._counts = [0] * len(self._counts)
        self._rises = []
        self._tails = {}
        self._n_dead = 0
        for place in places:
            self._enter_level(place)


def _from_end(place: QueuePlace[T]) -> tuple[float, int, int, QueuePlace[T]]:
    """Returns what orders the places of one level from the last to the first."""
    return -place.due, -place.number, -place.serial, place
