"""Waiting for a descriptor, through the hub and in a plain thread."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import gevent
import pytest

from corosrv.engine import waits
from corosrv.errors import Misuse
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


def test_a_later_wait_is_not_cut_short_by_an_earlier_timer(descriptor, waiter):
    descriptor.signal()
    waiter.wait(0.02)
    descriptor.clear()
    waiting = gevent.spawn(waiter.wait, TIMEOUT)
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


def test_a_wait_without_end_is_not_ended_by_an_earlier_timer(descriptor, waiter):
    descriptor.signal()
    waiter.wait(0.02)
    descriptor.clear()
    waiting = gevent.spawn(waiter.wait, None)
    gevent.sleep(0.05)

    assert not waiting.ready()
    descriptor.signal()
    waiting.get(timeout=TIMEOUT)


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


def test_closing_twice_is_harmless(waiter):
    waiter.close()
    waiter.close()


def test_a_plain_thread_polls(descriptor):
    def wait() -> type:
        waiter = waits.waiter(descriptor.fd)
        with pytest.raises(waits.TimedOut):
            waiter.wait(0.01)
        descriptor.signal()
        waiter.wait(TIMEOUT)
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


def run(program: str, timeout: float) -> "subprocess.CompletedProcess[bytes]":
    return waits.run_process([sys.executable, "-c", program], timeout)


def test_others_run_while_a_process_does():
    running = gevent.spawn(run, "print('done')", TIMEOUT)
    gevent.idle()
    assert not running.ready()

    ended = running.get(timeout=TIMEOUT)

    assert (ended.returncode, ended.stdout) == (0, b"done\n")


@pytest.mark.parametrize("call", [lambda *arguments: run(*arguments), lambda *arguments: in_thread(run, *arguments)])
def test_a_process_that_hangs_is_ended(call):
    with pytest.raises(subprocess.TimeoutExpired):
        call("import time; time.sleep(60)", 0.2)


def test_a_call_in_a_thread_gives_its_value_and_its_error():
    gevent.get_hub()

    assert waits.call_in_thread(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        waits.call_in_thread(divmod, 1, 0)


def test_without_a_hub_a_call_is_made_at_once():
    assert in_thread(lambda: waits.call_in_thread(waits.thread_id) == waits.thread_id())


def test_with_a_hub_a_call_is_made_elsewhere():
    gevent.get_hub()

    assert waits.call_in_thread(waits.thread_id) != waits.thread_id()
