"""Leaving a reader early gives everything back, whoever leaves and however."""

import asyncio
import gc
import os
import threading
from collections.abc import Callable

import gevent
import gevent.event
import pytest

from corosrv.base.errors import UsedAfterClose
from corosrv.contracts.jobs import Finish
from corosrv.models.engine import Engine
from tests.support import children
from tests.support.descriptors import n_descriptors
from tests.support.engines import TIMEOUT, endless, is_idle, job, read_all
from tests.support.waiting import eventually, wait_until


def test_cancelling_ends_with_a_terminal_chunk(slow):
    with slow.submit(endless()) as reader:
        reader.take(TIMEOUT)
        reader.cancel()

        assert list(reader)[-1].finish is Finish.CANCELLED


def test_any_thread_may_cancel(slow):
    with slow.submit(endless()) as reader:
        threading.Thread(target=reader.cancel).start()

        assert list(reader)[-1].finish is Finish.CANCELLED


def test_cancelling_what_has_ended_changes_nothing(engine):
    with engine.submit(job()) as reader:
        list(reader)
        reader.cancel()

        assert reader.take(TIMEOUT) == []


def leave_while_queued(engine: Engine) -> None:
    blocking = [engine.submit(endless()) for _ in range(4)]
    with engine.submit(endless()):
        pass
    for reader in blocking:
        reader.close()


def leave_before_the_first_chunk(engine: Engine) -> None:
    with engine.submit(endless("x" * 500)):
        pass


def leave_in_the_middle(engine: Engine) -> None:
    with engine.submit(endless()) as reader:
        for _ in reader:
            break


def leave_by_an_error(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), engine.submit(endless()) as reader:
        assert 1 / len(reader.take(TIMEOUT)[0].text[:0])


def leave_without_closing(engine: Engine) -> None:
    engine.submit(endless()).take(TIMEOUT)
    gc.collect()


def leave_killed(engine: Engine) -> None:
    has_begun = gevent.event.Event()

    def read() -> None:
        with engine.submit(endless()) as reader:
            while reader.take(TIMEOUT):
                has_begun.set()

    reading = gevent.spawn(read)
    assert has_begun.wait(TIMEOUT)
    reading.kill(timeout=TIMEOUT)


def leave_killed_in_the_queue(engine: Engine) -> None:
    blocking = [engine.submit(endless()) for _ in range(4)]
    reading = gevent.spawn(lambda: read_all(engine.submit(endless())))
    gevent.idle()
    reading.kill(timeout=TIMEOUT)
    for reader in blocking:
        reader.close()


def leave_timed_out(engine: Engine) -> None:
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.02):
        read_all(engine.submit(endless()))


def leave_asyncio(engine: Engine) -> None:
    async def read() -> None:
        with engine.submit(endless()) as reader:
            async for _ in reader:
                break

    asyncio.run(asyncio.wait_for(read(), TIMEOUT))


def leave_asyncio_cancelled(engine: Engine) -> None:
    async def read() -> None:
        with engine.submit(endless()) as reader:
            async for _ in reader:
                pass

    async def cancel() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(read(), 0.1)

    asyncio.run(cancel())


@pytest.mark.own_process
@pytest.mark.parametrize(
    "leave",
    [
        leave_while_queued,
        leave_before_the_first_chunk,
        leave_in_the_middle,
        leave_by_an_error,
        leave_without_closing,
        leave_killed,
        leave_killed_in_the_queue,
        leave_timed_out,
        leave_asyncio,
        leave_asyncio_cancelled,
    ],
)
def test_leaving_early_gives_back_slot_and_descriptor(slow: Engine, leave: Callable[[Engine], None]):
    before = n_descriptors()

    for _ in range(3):
        leave(slow)

    wait_until(lambda: is_idle(slow))
    wait_until(lambda: n_descriptors() <= before)
    assert slow.stats().tasks_cancelled >= 3


DROPPED = """
    import os, threading, time
    import gevent
    from tests.support.engines import SLOW, job, opened

    loop = gevent.get_hub().loop
    with opened(model=SLOW) as engine:
        reader = engine.submit(job(max_tokens=None))
        reader.take(20)  # its watcher runs from now on
        fd = reader.fileno()
        if {in_thread}:
            box = [reader]
            del reader
            dropping = threading.Thread(target=box.clear)
            dropping.start()
            dropping.join()
            gevent.sleep(0.01)
        else:
            del reader
        while os.path.exists(f"/proc/self/fd/{{fd}}"):
            time.sleep(0.001)
        other = os.eventfd(0)
        assert other == fd
        # A watcher that is left on the descriptor would be registered again here, and libev aborts for that.
        watcher = loop.io(other, 1)
        watcher.start(print)
        watcher.stop()
        watcher.close()
        os.close(other)
        gevent.sleep(0.01)
    print("alive")
"""


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_reader_that_is_dropped_leaves_no_watcher_behind(in_thread):
    assert children.output(DROPPED.format(in_thread=in_thread)) == "alive"


def test_leaving_the_block_closes_the_reader(slow):
    with slow.submit(endless()) as reader:
        pass

    with pytest.raises(UsedAfterClose):
        reader.fileno()


def await_closed(fd: int) -> None:
    """Waits until the decode thread has closed its end of a reader, too."""
    eventually(lambda: not os.path.exists(f"/proc/self/fd/{fd}"), what=f"the descriptor {fd} is closed")


@pytest.mark.own_process
def test_a_reader_hears_nothing_of_one_that_had_its_descriptor_before(engine):
    gevent.get_hub()
    with engine.submit(job()) as first:
        list(first)
        fd = first.fileno()
    await_closed(fd)

    with engine.submit(job()) as second:
        assert second.fileno() == fd
        assert second.take(TIMEOUT)
    assert first.is_finished  # and is still held


@pytest.mark.own_process
def test_an_asyncio_reader_hears_nothing_of_one_that_had_its_descriptor_before(engine):
    async def read() -> list[int]:
        fds = []
        for _ in range(2):
            with engine.submit(job()) as reader:
                fds.append(reader.fileno())
                assert [chunk async for chunk in reader]
            await_closed(fds[-1])
        return fds

    first, second = asyncio.run(asyncio.wait_for(read(), TIMEOUT))
    assert first == second


@pytest.mark.own_process
def test_a_finished_reader_leaves_no_descriptor_behind(engine):
    read_all(engine.submit(job()))
    before = n_descriptors()

    for _ in range(20):
        read_all(engine.submit(job()))

    wait_until(lambda: n_descriptors() <= before)  # the engine closes its end of a job after it has told the end
