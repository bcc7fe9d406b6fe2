"""Long computations let others run in between."""

import time
from concurrent.futures import ThreadPoolExecutor

import gevent

from corosrv.base.processor import Turns


def test_a_long_computation_in_turns_lets_others_run_between_them():
    ticks = []

    def tick():
        for _ in range(3):
            ticks.append(len(done))
            gevent.sleep(0)

    done = []
    others = gevent.spawn(tick)
    for item in Turns().among(range(20)):
        done.append(item)
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
    others.join(5)

    assert done == list(range(20))
    assert len(ticks) == 3
    assert ticks[-1] < 20


def test_turns_are_nothing_where_there_are_no_others():
    def compute():
        return [Turns().give_way() for _ in range(3)], list(Turns().among("abc"))

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(compute).result(5) == ([False] * 3, ["a", "b", "c"])
