"""What is answered in time when several times as much is asked as can run, on a clock that is moved by hand."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from corosrv.base.errors import CorosrvError, DeadlinePassed, QueueFull
from corosrv.contracts.jobs.infer import BatchLimits
from corosrv.workers.dispatch.estimates import ServiceTimes
from tests.workers.dispatch.hosts import FakeCall, FakeHost, Front, card, ended, error_of

DEADLINE = 0.8


def constant(chance: random.Random) -> float:
    return 0.1


def varied(chance: random.Random) -> float:
    return chance.uniform(0.03, 0.17)


def exponential(chance: random.Random) -> float:
    return chance.expovariate(10)


class Load:
    """Calls with a deadline that come at a rate, and a worker that ignores its cancels."""

    def __init__(self, front: Front, host: FakeHost, service: Callable[[random.Random], float]) -> None:
        self.front = front
        self.host = host
        self.service = service
        self._chance = random.Random(7)
        self._seen: set[FakeCall] = set()
        self._ends: list[tuple[float, int]] = []
        self._numbers = itertools.count()
        self._running: dict[int, FakeCall] = {}

    def run(self, rate: float, seconds: float) -> float:
        """Returns how many calls a second were answered in time."""
        clock, readers = self.front.clock, []
        over, next_call = clock.now + seconds, clock.now
        while clock.now < over:
            at = min(next_call, self._ends[0][0] if self._ends else over, over)
            clock.pass_time(max(at - clock.now, 0.0))
            if self._ends and self._ends[0][0] <= clock.now:
                self._running.pop(heapq.heappop(self._ends)[1]).finish()
            elif next_call <= clock.now < over:
                next_call += self._chance.expovariate(rate)
                with contextlib.suppress(QueueFull, DeadlinePassed):
                    readers.append(self.front.call(seconds=DEADLINE))
            self._take()
        return sum(ended(reader) and error_of(reader) is None for reader in readers) / seconds

    def _take(self) -> None:
        for call in self.host.calls:
            if call not in self._seen:
                self._seen.add(call)
                number = next(self._numbers)
                self._running[number] = call
                heapq.heappush(self._ends, (self.front.clock.now + self.service(self._chance), number))


@pytest.mark.parametrize("times", [3, 10])
@pytest.mark.parametrize("service", [constant, varied, exponential])
def test_most_of_the_capacity_is_answered_in_time_whatever_is_asked(service, times: int):
    front = Front.make()
    load = Load(front, front.add("p/0", card(admission="predict")), service)
    load.run(10 * times, 5)

    assert load.run(10 * times, 60) >= 9.5


@pytest.mark.parametrize("times", [3, 10])
def test_batches_are_answered_in_time_as_well(times: int):
    front = Front.make()
    handler = card(admission="predict", batch=BatchLimits(8, 5))
    load = Load(front, front.add("p/0", handler), lambda chance: chance.uniform(0.18, 0.22))
    load.run(40 * times, 5)

    assert load.run(40 * times, 30) >= 38


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_a_handler_that_was_slow_for_a_while_serves_again(seconds: float):
    front = Front.make()
    load = Load(front, front.add("p/0", card(admission="predict")), constant)
    load.run(30, 5)
    load.service = lambda chance: seconds
    load.run(30, 20)
    load.service = constant
    load.run(30, 6)

    assert load.run(30, 30) >= 8.5


def test_a_call_that_can_hardly_end_in_time_is_not_started(front: Front):
    host = front.add("p/0", card(admission="predict"))
    front.call(seconds=10)
    front.clock.pass_time(0.4)
    host.calls[0].finish()

    with pytest.raises(DeadlinePassed, match="300 ms were left, and half of the calls of its handler take 400 ms"):
        front.call(seconds=0.3)
    front.call(seconds=0.4)

    assert host.n_started == 2


def test_a_call_that_waited_too_long_to_end_in_time_gives_its_permit_to_the_next(front: Front):
    host = front.add("p/0", card(admission="predict"))
    front.call()
    front.clock.pass_time(0.4)
    host.calls[0].finish()
    front.call()
    late, other = front.call(seconds=0.9), front.call(priority=9)
    front.clock.pass_time(0.6)

    host.calls[0].finish()

    error: CorosrvError | None = error_of(late)
    assert isinstance(error, DeadlinePassed)
    assert "it was not started" in str(error)
    assert not ended(other)
    assert host.n_started == 3


def test_a_batch_takes_no_call_that_can_hardly_end_in_time(front: Front):
    host = front.add("p/0", card(admission="predict", batch=BatchLimits(4, 0)))
    front.call()
    front.clock.pass_time(0.4)
    host.calls[0].finish()
    front.call()
    for seconds in (None, None, 0.9):
        front.call(seconds=seconds)
    front.clock.pass_time(0.6)

    host.calls[0].finish()

    assert len(host.calls[0].running) == 2


@pytest.mark.parametrize(("usual", "silence"), [(0.6, 1.2), (2.0, 4.0), (60.0, 5.0)])
def test_after_a_while_without_news_one_call_is_tried_and_its_time_replaces_all(usual: float, silence: float):
    front = Front.make()
    host = front.add("p/0", card(admission="predict"))
    for _ in range(3):
        front.call()
        front.clock.pass_time(usual)
        host.calls[0].finish()
    front.clock.pass_time(silence - 0.01)
    with pytest.raises(DeadlinePassed):
        front.call(seconds=0.5)
    front.clock.pass_time(0.01)

    front.call(seconds=0.5)
    front.clock.pass_time(0.1)
    host.calls[0].finish()
    front.call(seconds=0.5)

    assert host.n_started == 5


def test_while_a_call_runs_no_other_is_tried_before_twice_the_usual_time(front: Front):
    host = front.add("p/0", card(admission="predict"), n_slots=2)
    front.call()
    front.clock.pass_time(6)
    host.calls[0].finish()
    front.call()
    front.clock.pass_time(11.9)
    with pytest.raises(DeadlinePassed):
        front.call(seconds=0.5)
    front.clock.pass_time(0.1)

    front.call(seconds=0.5)

    assert host.n_started == 3


def test_without_measurements_calls_are_admitted(front: Front):
    host = front.add("p/0", card(admission="predict"))

    for _ in range(5):
        front.call(seconds=0.001)

    assert (host.n_started, front.key().depth) == (1, 4)


def test_a_handler_that_lets_all_wait_starts_them_until_their_deadlines(front: Front):
    host = front.add("p/0", card())
    front.call()
    front.clock.pass_time(5)
    host.calls[0].finish()

    front.call(seconds=0.1)

    assert host.n_started == 2


def test_times_that_were_cut_short_count_only_where_they_are_long():
    times = ServiceTimes()
    for seconds, is_cut in ((1.0, False), (0.1, True), (3.0, True)):
        times.start(0.0)
        times.finish(0.0, seconds, True, is_cut)

    assert (times.median, times.longest) == (1.0, 1.0)
    assert times.mean == 2.0


def test_a_call_that_its_client_ended_early_says_nothing_of_how_long_calls_take(front: Front):
    host = front.add("p/0", card(admission="predict"))
    front.call()
    front.clock.pass_time(2)
    host.calls[0].finish()
    for _ in range(3):
        reader = front.call()
        front.clock.pass_time(0.1)
        reader.cancel()
        host.calls[0].finish()

    with pytest.raises(DeadlinePassed):
        front.call(seconds=0.5)


def times_of(*seconds: float) -> ServiceTimes:
    times = ServiceTimes()
    for taken in seconds:
        times.start(0.0)
        times.finish(0.0, taken, True, False)
    return times


def test_the_longest_few_do_not_count_for_the_mean():
    assert times_of(1, 1, 1, 9).mean == 1.0


@pytest.mark.parametrize(
    ("n_turns", "n_permits", "has_free", "seconds"), [(1, 1, False, 1.5), (3, 2, False, 3.5), (1, 1, True, 0.0)]
)
def test_a_wait_is_the_rest_of_what_runs_and_the_turns_before(n_turns, n_permits, has_free, seconds):
    times = times_of(2, 2)
    times.start(10.0)

    assert times.wait(n_turns, n_permits, has_free, 10.5) == seconds


def test_what_runs_for_longer_than_usual_is_awaited_no_more():
    times = times_of(2, 2)
    times.start(10.0)

    assert times.wait(1, 1, False, 15.0) == 0.0


@pytest.fixture
def front() -> Front:
    return Front.make()
