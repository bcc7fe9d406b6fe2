"""Waiting for a descriptor, through the hub and in a plain thread."""

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import gevent
import pytest

from corosrv.base import waits
from corosrv.base.errors import Misuse
from tests.support.engines import TIMEOUT


class Descriptor(NamedTuple):
    """An eventfd, written and read by hand."""

    fd: int

    def signal(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self.fd)


@pytest.fixture
def descriptor() -> Iterator[Descriptor]:
    fd = os.eventfd(0)
    yield Descriptor(fd)
    os.close(fd)


@pytest.fixture
def waiter(descriptor) -> Iterator[waits.HubWaiter]:
    waiter = waits.HubWaiter(gevent.get_hub(), descriptor.fd)
    yield waiter
    waiter.close()


def in_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result(TIMEOUT)


def test_a_readable_descriptor_is_not_waited_for(descriptor, waiter):
    descriptor.signal()

    waiter.wait(TIMEOUT)


def test_a_signal_wakes_the_greenlet_that_waits(descriptor, waiter):
    for _ in range(3):
        waiting = gevent.spawn(waiter.wait, TIMEOUT)
        gevent.idle()
        assert not waiting.ready()

        descriptor.signal()

        waiting.get(timeout=TIMEOUT)
        descriptor.clear()


@pytest.mark.parametrize("seconds", [0, 0.01])
def test_a_wait_ends_in_time(waiter, seconds):
    for _ in range(3):
        with pytest.raises(waits.TimedOut):
            waiter.wait(seconds)


@pytest.mark.parametrize("timeout", [TIMEOUT, None])
def test_a_later_wait_is_not_cut_short_by_an_earlier_timer(descriptor, waiter, timeout):
    descriptor.signal()
    with contextlib.suppress(waits.TimedOut):  # a busy machine may see the signal too late
        waiter.wait(0.02)
    descriptor.clear()
    waiting = gevent.spawn(waiter.wait, timeout)
    gevent.sleep(0.05)

    assert not waiting.ready()
    descriptor.signal()
    waiting.get(timeout=TIMEOUT)


def test_a_shorter_wait_is_not_stretched_by_an_earlier_timer(descriptor, waiter):
    descriptor.signal()
    waiter.wait(TIMEOUT)
    descriptor.clear()

    with pytest.raises(waits.TimedOut), gevent.Timeout(TIMEOUT / 2):
        waiter.wait(0.01)


def test_only_one_greenlet_may_wait(descriptor, waiter):
    waiting = gevent.spawn(waiter.wait, TIMEOUT)
    gevent.idle()

    with pytest.raises(Misuse):
        waiter.wait(TIMEOUT)

    descriptor.signal()
    waiting.get(timeout=TIMEOUT)


def test_a_killed_wait_leaves_the_waiter_usable(descriptor, waiter):
    waiting = gevent.spawn(waiter.wait, TIMEOUT)
    gevent.idle()
    waiting.kill(timeout=TIMEOUT)

    descriptor.signal()

    waiter.wait(TIMEOUT)


def test_a_wait_goes_on_until_the_look_says_so(descriptor, waiter):
    answers = [False, False, True]
    waiting = gevent.spawn(waiter.wait, TIMEOUT, lambda: answers.pop(0))

    for n_left in (2, 1):
        gevent.idle()
        descriptor.signal()
        gevent.idle()
        assert len(answers) == n_left
        assert not waiting.ready()
    descriptor.signal()

    waiting.get(timeout=TIMEOUT)


def test_what_a_look_raises_ends_the_wait_and_nobody_else_s(descriptor, waiter):
    waiting = gevent.spawn(waiter.wait, TIMEOUT, lambda: 1 // 0 == 0)
    gevent.idle()

    descriptor.signal()

    with pytest.raises(ZeroDivisionError):
        waiting.get(timeout=TIMEOUT)
    descriptor.signal()
    waiter.wait(TIMEOUT)


def test_a_look_puts_off_the_time_out(descriptor, waiter):
    looks: list[float] = []
    began = time.monotonic()
    waiting = gevent.spawn(waiter.wait, 0.15, lambda: looks.append(time.monotonic() - began))
    gevent.spawn_later(0.05, descriptor.signal)

    with pytest.raises(waits.TimedOut):
        waiting.get(timeout=TIMEOUT)

    assert time.monotonic() - began >= looks[0] + 0.15


def test_a_write_while_nobody_waits_is_not_lost_and_lets_others_go_first(descriptor, waiter):
    order: list[str] = []
    descriptor.signal()
    gevent.idle()
    gevent.spawn(order.append, "other")

    waiter.wait(TIMEOUT)

    assert order == ["other"]


def test_a_closed_waiter_looks_no_more(descriptor, waiter):
    looks: list[bool] = []
    descriptor.signal()
    gevent.idle()
    waiting = gevent.spawn(waiter.wait, TIMEOUT, lambda: looks.append(True))
    gevent.get_hub().loop.run_callback(waiter.close)  # before the look that the wait asks for
    gevent.idle()

    assert looks == []
    waiting.kill(timeout=TIMEOUT)


def test_a_wait_is_as_long_as_asked_for_whatever_the_one_before_left_of_its_timer(descriptor, waiter):
    descriptor.signal()
    with contextlib.suppress(waits.TimedOut):  # a busy machine may see the signal too late
        waiter.wait(0.1)
    gevent.sleep(0.06)
    began = time.monotonic()

    with pytest.raises(waits.TimedOut):
        waiter.wait(0.1)

    assert time.monotonic() - began >= 0.1


@pytest.mark.own_process
def test_closing_the_last_waiter_of_a_hub_gives_its_descriptor_back(descriptor):
    def descriptors() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))

    def wait_and_close() -> bool:
        hub = gevent.get_hub()
        before = descriptors()
        waits.HubWaiter(hub, descriptor.fd).close()
        after = descriptors()
        hub.destroy(destroy_loop=True)
        return before == after

    assert in_thread(wait_and_close)


def test_closing_twice_is_harmless(waiter):
    waiter.close()
    waiter.close()


def test_a_plain_thread_polls(descriptor):
    def wait() -> type:
        waiter = waits.waiter(descriptor.fd)
        with pytest.raises(waits.TimedOut):
            waiter.wait(0.01)
        descriptor.signal()
        answers = [False, True]
        waiter.wait(TIMEOUT, lambda: answers.pop(0))
        assert answers == []
        return type(waiter)

    assert in_thread(wait) is waits.PollWaiter


def test_a_thread_with_a_hub_waits_through_it(descriptor):
    gevent.get_hub()

    waiter = waits.waiter(descriptor.fd)

    assert type(waiter) is waits.HubWaiter
    waiter.close()


def test_waiting_once_leaves_nothing_behind(descriptor):
    descriptor.signal()

    waits.wait_readable(descriptor.fd, TIMEOUT)
    descriptor.clear()

    with pytest.raises(waits.TimedOut):
        waits.wait_readable(descriptor.fd, 0.01)
