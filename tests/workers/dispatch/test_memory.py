"""What a call costs while it waits."""

from __future__ import annotations

import gc
import threading
import tracemalloc

import gevent
import pytest

from corosrv.workers.dispatch.call import QueuedCall
from tests.workers.dispatch.hosts import Front, card, text

N_CALLS = 10_000


@pytest.mark.slow
def test_ten_thousand_waiting_calls_take_little_memory_and_no_greenlets_or_threads():
    front = Front.make(max_calls=N_CALLS)
    host = front.add("p/0", card(max_queue=N_CALLS))
    front.call()
    gc.collect()  # of other tests
    n_greenlets = sum(isinstance(item, gevent.Greenlet) for item in gc.get_objects())
    n_threads = threading.active_count()
    tracemalloc.start()

    readers = [front.call("add", text("a", b"x" * 1000), seconds=600) for _ in range(N_CALLS)]

    used = tracemalloc.get_traced_memory()[0] / N_CALLS
    tracemalloc.stop()
    print(f"{used:.0f} bytes for each waiting call")
    assert used < 16_000
    assert front.key().depth == N_CALLS
    assert sum(isinstance(item, gevent.Greenlet) for item in gc.get_objects()) <= n_greenlets
    assert threading.active_count() <= n_threads
    assert host.permits.in_use == 1
    del readers


def test_a_call_that_has_ended_is_not_kept():
    front = Front.make()
    host = front.add("p/0")
    front.call()
    for _ in range(300):
        front.call("add", text("a", b"x" * 1000), seconds=60).close()
    while host.calls:
        host.calls[0].finish()
    gc.collect()

    # Places that are not met yet may linger, until half of a queue is dead; never what they were for.
    assert sum(isinstance(item, QueuedCall) for item in gc.get_objects()) <= 1
