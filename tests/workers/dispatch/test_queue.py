"""The order of a queue, beside a model that sorts everything each time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from corosrv.workers.dispatch.ledger import CallerAccount, Ledger
from corosrv.workers.dispatch.queue import CallQueue, FairQueue, QueuePlace, Rank, level_at, rank


class Queues(RuleBasedStateMachine):
    """Pushes, removes, takes and lets time pass in any order."""

    @initialize()
    def make(self) -> None:
        self.queue: CallQueue[int] = CallQueue()
        self.now = 0.0
        self.numbers = itertools.count()
        self.waiting: dict[int, tuple[int, float, float, QueuePlace[int]]] = {}  # priority, due, arrived, place
        self.gone: list[tuple[int, int, float, float]] = []

    @rule(priority=st.integers(1, 9), seconds=st.integers(0, 60))
    def push(self, priority: int, seconds: int) -> None:
        self._push(next(self.numbers), priority, self.now + seconds, self.now)

    def _push(self, number: int, priority: int, due_at: float, arrived: float) -> None:
        place = self.queue.push(number, priority, due_at, arrived, number, self.now)
        self.waiting[number] = (priority, due_at, arrived, place)

    @rule(seconds=st.sampled_from([0.5, 3, 10, 45]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.waiting:
            self._remove(data.draw(st.sampled_from(sorted(self.waiting))))

    @rule()
    def take(self) -> None:
        place = self.queue.head(self.now)
        if place is not None:
            assert place.item is not None
            self._remove(place.item)

    def _remove(self, number: int) -> None:
        priority, due_at, arrived, place = self.waiting.pop(number)
        self.queue.remove(place)
        self.queue.remove(place)
        self.gone.append((number, priority, due_at, arrived))

    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        if self.gone:
            self._push(*self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1))))

    def order(self, number: int) -> tuple[int, float, int]:
        priority, due_at, arrived, _ = self.waiting[number]
        return level_at(priority, arrived, self.now), due_at, number

    @invariant()
    def the_head_is_the_first_of_all(self) -> None:
        expected = min(self.waiting, key=self.order, default=None)

        head = self.queue.head(self.now)

        assert (head and head.item) == expected
        if head is not None and expected is not None:
            assert head.order == self.order(expected)

    @invariant()
    def the_last_is_the_last_of_the_worst_class(self) -> None:
        expected = max(self.waiting, key=self.order, default=None)

        last = self.queue.last(self.now)

        assert (last and last.item) == expected

    @invariant()
    def everything_is_counted(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert set(self.queue) == set(self.waiting)
        self.queue.head(self.now)
        for priority in (1, 5, 9):
            ahead = sum(self.order(number)[0] <= priority for number in self.waiting)
            assert self.queue.count_ahead(priority) == ahead
        assert (self.queue.oldest() is None) == (not self.waiting)


class FairQueues(RuleBasedStateMachine):
    """Lets calls of several callers come, start, end and leave in any order."""

    @initialize()
    def make(self) -> None:
        self.ledger = Ledger()
        self.queue: FairQueue[int] = FairQueue()
        self.now = 0.0
        self.numbers = itertools.count()
        self.waiting: dict[int, tuple[int, int, float, QueuePlace[int]]] = {}  # tier, priority, arrived, place
        self.running: list[CallerAccount] = []

    @rule(owner=st.integers(0, 3), priority=st.sampled_from([1, 5, 9]), seconds=st.sampled_from([0, 60]))
    def push(self, owner: int, priority: int, seconds: int) -> None:
        number, tier = next(self.numbers), owner // 3
        account = self.ledger.join(str(owner), tier, 1.0 + owner)
        place = self.queue.push(number, account, tier, priority, self.now + seconds, self.now, number, self.now)
        self.waiting[number] = tier, priority, self.now, place

    @rule(seconds=st.sampled_from([1, 3, 10, 45]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.settle(self.now)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.waiting:
            place = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))[3]
            self.queue.remove(place)
            self.queue.remove(place)
            self.ledger.leave(place.account, waits=True)

    @rule(n_calls=st.integers(1, 4))
    def start(self, n_calls: int) -> None:
        for _ in range(n_calls):
            place = self.queue.head(self.now)
            if place is not None and place.item is not None:
                del self.waiting[place.item]
                self.queue.remove(place)
                self.ledger.start(place.account, 1.0, self.now)
                self.running.append(place.account)

    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        if self.running:
            self.now += 1
            account = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.ledger.stop(account, 1.0, self.now)
            self.ledger.leave(account, waits=False)

    def rank(self, number: int) -> Rank:
        tier, priority, arrived, place = self.waiting[number]
        return rank(place.account, level_at(priority, arrived, self.now, tier), place.due, number)

    @invariant()
    def the_head_is_the_first_of_all(self) -> None:
        expected = min(self.waiting, key=self.rank, default=None)

        head = self.queue.head(self.now)

        assert (head and head.item) == expected
        assert len(self.queue) == len(self.waiting)
        assert set(self.queue) == set(self.waiting)
        assert len(self.queue._heads) <= 2 * len(self.queue.lines) + 65


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestFairQueues = FairQueues.TestCase
TestFairQueues.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize(
    ("priority", "waited", "level"), [(5, 0, 5), (5, 9.9, 5), (5, 10, 4), (9, 35, 6), (9, 1000, 1), (1, 50, 1)]
)
def test_a_class_is_gained_for_every_ten_seconds(priority: int, waited: float, level: int):
    assert level_at(priority, 100, 100 + waited) == level


def test_the_longest_waiting_is_known_when_one_returns():
    queue: CallQueue[str] = CallQueue()
    queue.push("new", 5, 0, arrived=7, number=2, now=7)
    place = queue.push("old", 5, 0, arrived=3, number=1, now=8)

    assert queue.oldest() == 3
    queue.remove(place)
    assert queue.oldest() == 7


def test_what_has_left_is_not_kept():
    queue: CallQueue[int] = CallQueue()
    first = queue.push(-1, 9, 0, 0, -1, 0)
    for number in range(10_000):
        queue.remove(queue.push(number, 9, 1, 0, number, 0))

    assert queue.head(0) is first
    assert sum(map(len, queue._levels.values())) + len(queue._rises) + len(queue._arrivals) < 400


def test_what_has_left_is_not_kept_by_those_who_ask_for_the_last():
    queue: CallQueue[int] = CallQueue()
    for number in range(10_000):
        place = queue.push(number, 9, 1, 0, number, 0)
        assert queue.last(0) is place
        queue.remove(place)

    assert sum(map(len, queue._tails.values())) < 400


def test_of_items_that_end_too_soon_the_one_with_the_most_time_is_first():
    queue: CallQueue[str] = CallQueue()
    for number, (item, deadline) in enumerate({"little": 1.0, "most": 3.0, "some": 2.0}.items()):
        queue.push(item, 5, deadline, 0, number, 0, deadline)

    heads = []
    while (place := queue.head(0, needed=5)) is not None:
        heads.append(place.item)
        queue.remove(place)

    assert heads == ["most", "some", "little"]


def test_items_that_have_left_are_not_kept_beneath_one_that_ends_too_soon():
    queue: CallQueue[int] = CallQueue()
    queue.push(0, 5, 0, 0, 0, 0, 1.0)
    for number in range(1, 10_000):
        place = queue.push(number, 5, 0, 0, number, 0, 0.5)
        queue.head(0, needed=5)
        queue.remove(place)

    assert sum(map(len, queue._risky.values())) < 400


class Timed:
    """A queue of several callers, with the steps of tests/native/loop/fair_order.txt."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.queue: FairQueue[str] = FairQueue()
        self.owners: dict[str, CallerAccount] = {}
        self.now = 1000.0
        self.numbers = itertools.count()

    def add(self, step: str) -> None:
        owner, *options = step[1:].split(":")
        values = {option[0]: float(option[1:]) for option in options}
        tier = int(values.get("t", 0))
        account = self.owners[owner] = self.ledger.join(owner, tier, values.get("w", 1.0))
        self.queue.push(
            step[0], account, tier, int(values.get("p", 5)), self.now + values.get("d", 60), self.now,
            next(self.numbers), self.now,
        )  # fmt: skip

    def take(self) -> tuple[str, CallerAccount]:
        place = self.queue.head(self.now)
        assert place is not None
        assert place.item is not None
        name = place.item
        self.queue.remove(place)
        return name, place.account

    def start(self) -> str:
        name, account = self.take()
        self.ledger.start(account, 1.0, self.now)
        return name

    def stop(self, owner: str) -> None:
        self.ledger.stop(self.owners[owner], 1.0, self.now)
        self.ledger.leave(self.owners[owner], waits=False)

    def charge(self, owner: str, seconds: float) -> None:
        self.owners[owner].virtual_s += seconds / self.owners[owner].weight


TABLE = Path(__file__).parents[2] / "native" / "loop" / "fair_order.txt"


@pytest.mark.parametrize("line", [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")])
def test_the_order_is_the_one_that_the_decode_loop_has(line: str):
    steps, expected = line.split(" = ")
    timed, names = Timed(), ""

    for step in steps.split():
        match step[0]:
            case "+":
                timed.now += float(step[1:])
                timed.queue.head(timed.now)
            case "$":
                owner, seconds = step[1:].split(":")
                timed.charge(owner, float(seconds))
            case ">":
                names += timed.start()
            case "!":
                timed.stop(step[1:])
            case _:
                timed.add(step)
    while timed.queue:
        names += timed.take()[0]

    assert names == expected.replace(" ", "")


def test_a_more_urgent_call_of_a_caller_takes_its_line_before_those_of_others_that_have_had_as_much():
    ledger, queue = Ledger(), FairQueue[str]()
    one, two = ledger.join("one"), ledger.join("two")
    queue.push("last", one, 0, 9, 60.0, 0.0, 0, 0.0)
    queue.push("second", two, 0, 5, 60.0, 0.0, 1, 0.0)
    queue.head(0.0)

    first = queue.push("first", one, 0, 1, 60.0, 0.0, 2, 0.0)

    assert queue.head(0.0) is first


def test_a_call_that_leaves_and_returns_has_its_place_again():
    ledger, queue = Ledger(), FairQueue[int]()
    accounts = [ledger.join(caller) for caller in "abc"]
    queue.push(0, accounts[0], 0, 5, 60.0, 0.0, 0, 0.0)
    queue.push(1, accounts[1], 0, 5, 60.0, 0.0, 1, 0.0)
    queue.head(0.0)
    for _ in range(2):
        place = queue.push(2, accounts[2], 0, 5, 60.0, 0.0, 2, 0.0)
        queue.remove(place)
    queue.push(2, accounts[2], 0, 5, 60.0, 0.0, 2, 0.0)

    order = []
    while (head := queue.head(0.0)) is not None:
        order.append(head.item)
        queue.remove(head)

    assert order == [0, 1, 2]
