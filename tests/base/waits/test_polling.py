"""Looking at intervals at what has no descriptor, in the hub and in a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import gevent
import pytest

from corosrv.base import waits
from corosrv.base.waits.waiters import PolledSet
from tests.support.engines import TIMEOUT

NO_DESCRIPTOR = -1


class Source:
    """Readable when the test says so, until it says otherwise."""

    def __init__(self) -> None:
        self.is_set = False
        self.n_looks = 0

    def is_readable(self) -> bool:
        self.n_looks += 1
        return self.is_set


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def waiter(source: Source) -> Iterator[waits.HubWaiter]:
    waiter = waits.HubWaiter(gevent.get_hub(), NO_DESCRIPTOR, source.is_readable)
    yield waiter
    waiter.close()


def test_what_turns_readable_wakes_the_greenlet_that_waits(source, waiter):
    waiting = gevent.spawn(waiter.wait, TIMEOUT)
    gevent.idle()
    assert not waiting.ready()

    source.is_set = True

    waiting.get(timeout=TIMEOUT)


def test_a_wait_in_the_hub_ends_in_time(source, waiter):
    with pytest.raises(waits.TimedOut):
        waiter.wait(0.03)

    assert source.n_looks >= 1


def test_a_wait_in_the_hub_goes_on_until_the_look_says_so(source, waiter):
    answers = [False, True]
    source.is_set = True

    waiter.wait(TIMEOUT, lambda: answers.pop(0))

    assert answers == []


def test_a_closed_waiter_is_looked_at_no_more(source, waiter):
    waiter.close()
    n_looks = source.n_looks
    gevent.sleep(0.05)

    assert source.n_looks == n_looks


def test_one_timer_serves_all_and_ends_with_the_last():
    polled = PolledSet(gevent.get_hub())
    sources = [Source(), Source()]
    told: list[Source] = []
    for source in sources:
        source.is_set = True
        polled.add(source.is_readable, lambda source=source: told.append(source))
    gevent.sleep(0.05)
    assert set(told) == set(sources)

    for source in sources:
        polled.remove(source.is_readable)
    told.clear()
    gevent.sleep(0.05)

    assert told == []


def test_whoever_is_removed_while_others_are_told_is_not_told():
    polled = PolledSet(gevent.get_hub())
    first, second = Source(), Source()
    first.is_set = second.is_set = True
    told: list[str] = []

    def remove_both() -> None:
        told.append("first")
        polled.remove(first.is_readable)
        polled.remove(second.is_readable)

    polled.add(first.is_readable, remove_both)
    polled.add(second.is_readable, lambda: told.append("second"))
    gevent.sleep(0.05)

    assert told == ["first"]


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(TIMEOUT)


def test_a_plain_thread_looks_as_well(source):
    answers = [False, True]

    def wait() -> type:
        waiter = waits.waiter(NO_DESCRIPTOR, source.is_readable)
        with pytest.raises(waits.TimedOut):
            waiter.wait(0.03)
        source.is_set = True
        waiter.wait(TIMEOUT, lambda: answers.pop(0))
        return type(waiter)

    assert in_thread(wait) is waits.SleepWaiter
    assert answers == []


def test_a_look_puts_off_the_time_out_of_a_thread(source):
    looks: list[float] = []

    def look() -> bool:
        looks.append(time.monotonic())
        source.is_set = False
        return False

    def wait() -> float:
        source.is_set = True
        with pytest.raises(waits.TimedOut):
            waits.waiter(NO_DESCRIPTOR, source.is_readable).wait(0.05, look)
        return time.monotonic()

    assert in_thread(wait) >= looks[0] + 0.05
