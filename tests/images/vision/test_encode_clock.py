"""The time in which an encoder process could run, by what the loop and the kernel say."""

import os
import time

import pytest

from corosrv.images.vision.pump import EncodeClock, ProcessReading, ThreadTimes, read_threads


def reading(at: float, held: float = 0.0, *threads: tuple[float, float]) -> ProcessReading:
    return ProcessReading(at, held, {number: ThreadTimes(*times) for number, times in enumerate(threads)})


@pytest.mark.parametrize(
    ("later", "now"),
    [
        (reading(10.0), 10.0),
        (reading(10.0, 9.0), 1.0),
        (reading(10.0, 12.0), 0.0),
        (reading(10.0, 4.0, (5.0, 0.0)), 6.0),
        (reading(10.0, 4.0, (1.0, 3.0), (1.0, 2.0)), 3.0),
        (reading(10.0, 0.0, (0.0, 10.0)), 0.0),
    ],
    ids=["nothing", "held", "held for longer than it was", "computing", "two threads without a processor", "starved"],
)
def test_time_counts_in_which_the_process_was_neither_held_nor_without_a_processor(later, now):
    clock = EncodeClock(reading(0.0, 0.0, (0.0, 0.0), (0.0, 0.0)))

    assert clock.advance(later) == pytest.approx(now)


@pytest.mark.parametrize(
    ("threads", "idle"),
    [([(0.0, 0.0)], 10.0), ([(0.1, 0.0)], 10.0), ([(0.2, 0.0)], 0.0), ([(0.1, 0.0), (0.1, 0.0)], 0.0), ([], 0.0)],
    ids=["no work", "too little", "some", "some of two threads", "the kernel does not tell"],
)
def test_a_process_that_could_have_worked_and_has_not_stands_still(threads, idle):
    clock = EncodeClock(reading(0.0))

    clock.advance(reading(10.0, 0.0, *threads))

    assert clock.idle == pytest.approx(idle)


def test_a_process_that_had_nothing_to_do_did_not_stand_still():
    clock = EncodeClock(reading(0.0, 0.0, (0.0, 0.0)))
    clock.advance(reading(10.0, 0.0, (0.0, 0.0)))

    clock.begin_encode()

    assert clock.idle == 0.0


def test_the_kernel_tells_how_long_threads_have_computed():
    before = read_threads(os.getpid())
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass

    after = read_threads(os.getpid())

    assert after[os.getpid()].computed - before[os.getpid()].computed >= 0.04


def test_a_process_that_is_gone_has_no_threads():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)

    assert read_threads(pid) == {}
