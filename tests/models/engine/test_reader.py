"""Readers: greenlets, threads and asyncio wait for chunks, and take them."""

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import gevent
import pytest
from gevent._hub_local import get_hub_if_exists

from corosrv.base.errors import ReadTimeout
from corosrv.contracts.jobs import Finish, Job
from corosrv.models.engine import Chunk, Engine, Reader
from tests.support import children
from tests.support.engines import TIMEOUT, endless, job, read_all, text_of
from tests.support.waiting import wait_until


@contextmanager
def queued(engine: Engine, job: Job) -> Iterator[tuple[Reader, Callable[[], None]]]:
    """A job that gets its slot only when the function given with it is called."""
    with ExitStack() as running:
        for _ in range(engine.stats().slots):
            running.enter_context(engine.submit(endless()))
        with engine.submit(job) as reader:
            yield reader, running.close


def in_greenlet(engine: Engine, job: Job) -> list[Chunk]:
    return gevent.spawn(lambda: read_all(engine.submit(job))).get(timeout=TIMEOUT)


def in_thread(engine: Engine, job: Job) -> list[Chunk]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: read_all(engine.submit(job))).result(TIMEOUT)


def in_asyncio(engine: Engine, job: Job) -> list[Chunk]:
    async def read() -> list[Chunk]:
        with engine.submit(job) as reader:
            return [chunk async for chunk in reader]

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT))


WAYS = pytest.mark.parametrize("read", [in_greenlet, in_thread, in_asyncio])


@WAYS
def test_every_way_of_waiting_reads_the_same(engine, read):
    expected = text_of(read_all(engine.submit(job(max_tokens=30))))

    chunks = read(engine, job(max_tokens=30))

    assert text_of(chunks) == expected
    assert sum(chunk.n_tokens for chunk in chunks) == 30


@WAYS
def test_the_last_chunk_of_each_task_and_no_other_says_why_it_ended(engine, read):
    chunks = read(engine, job(n=3))

    ends = [(chunk.index, chunk.finish) for chunk in chunks if chunk.finish]
    assert sorted(ends) == [(index, Finish.LENGTH) for index in range(3)]
    for index in range(3):
        assert [chunk for chunk in chunks if chunk.index == index][-1].finish


def test_others_run_while_a_greenlet_waits(slow):
    progress: list[str] = []
    with queued(slow, job()) as (reader, begin):
        reading = gevent.spawn(lambda: progress.append(text_of(reader)))

        for _ in range(5):
            gevent.sleep(0)
            progress.append("tick")
        begin()

        reading.get(timeout=TIMEOUT)
    assert progress[:5] == ["tick"] * 5
    assert len(progress) == 6


def test_other_tasks_run_while_an_asyncio_task_waits(slow):
    async def race() -> list[str]:
        progress: list[str] = []

        with queued(slow, job()) as (reader, begin):

            async def tick() -> None:
                for _ in range(5):
                    await asyncio.sleep(0)
                    progress.append("tick")
                begin()

            ticking = asyncio.create_task(tick())
            async for _ in reader:
                progress.append("chunk")
            await ticking
        return progress

    progress = asyncio.run(asyncio.wait_for(race(), TIMEOUT))

    assert progress[:6] == ["tick"] * 5 + ["chunk"]


def test_many_greenlets_read_at_once(engine):
    alone = text_of(read_all(engine.submit(job())))

    readings = [gevent.spawn(lambda: text_of(read_all(engine.submit(job())))) for _ in range(100)]

    assert [reading.get(timeout=TIMEOUT) for reading in readings] == [alone] * 100


def test_a_thread_needs_no_hub(engine):
    def read() -> bool:
        from gevent._hub_local import get_hub_if_exists

        read_all(engine.submit(job()))
        return get_hub_if_exists() is None

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(read).result(TIMEOUT)


def test_chunks_that_pile_up_are_read_in_one_take(engine):
    with engine.submit(job(max_tokens=50)) as reader:
        wait_until(lambda: engine.stats().tasks_length == 1)

        (chunk,) = reader.take(TIMEOUT)

    assert (chunk.n_tokens, chunk.finish) == (50, Finish.LENGTH)


def test_a_pile_of_chunks_is_one_wake(engine):
    with engine.submit(job(max_tokens=50)):  # its first: a wake is counted behind the step that it tells of
        wait_until(lambda: engine.stats().tasks_length == 1)

    assert engine.stats().eventfd_writes == 1


def test_the_descriptor_is_readable_when_there_is_something_to_take(engine):
    with engine.submit(job()) as reader:
        assert select.select([reader.fileno()], [], [], TIMEOUT)[0]
        assert reader.take_nowait()


def test_a_pump_passes_everything_on_in_the_hub(engine):
    passed: list[Chunk] = []
    where: set[object] = set()

    def sink(chunks: list[Chunk]) -> bool:
        passed.extend(chunks)
        where.add(gevent.getcurrent())
        return True

    with engine.submit(job(max_tokens=50)) as reader:
        reader.pump(sink, TIMEOUT)

        assert reader.is_finished
    assert where == {gevent.get_hub()}
    assert sum(chunk.n_tokens for chunk in passed) == 50


def test_a_pump_in_a_thread_needs_no_hub(engine):
    def pump() -> int:
        passed: list[Chunk] = []
        with engine.submit(job(max_tokens=50)) as reader:
            reader.pump(lambda chunks: passed.extend(chunks) or True, TIMEOUT)
        assert get_hub_if_exists() is None
        return sum(chunk.n_tokens for chunk in passed)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(pump).result(TIMEOUT) == 50


def test_a_pump_ends_when_its_sink_is_full_and_can_go_on(slow):
    n_taken: list[int] = []

    def sink(chunks: list[Chunk]) -> bool:
        n_taken.append(sum(chunk.n_tokens for chunk in chunks))
        return False

    with slow.submit(job(max_tokens=4)) as reader:
        n_pumps = 0
        while not reader.is_finished:
            reader.pump(sink, TIMEOUT)
            n_pumps += 1
            assert len(n_taken) == n_pumps

    assert sum(n_taken) == 4


def test_what_a_sink_raises_is_raised_where_it_was_pumped(slow):
    with slow.submit(endless()) as failing, slow.submit(job(max_tokens=4)) as other:
        reading = gevent.spawn(list, other)

        with pytest.raises(ZeroDivisionError):
            failing.pump(lambda chunks: 1 // 0 == 0, TIMEOUT)

        assert failing.take(TIMEOUT)
        assert sum(chunk.n_tokens for chunk in reading.get(timeout=TIMEOUT)) == 4


def test_a_pump_without_chunks_times_out(slow):
    with slow.submit(endless()) as reader, pytest.raises(ReadTimeout):
        reader.pump(lambda chunks: True, 0.01)


def test_no_chunk_is_lost_between_takes_at_any_speed(engine):
    def read() -> int:
        n_tokens = 0
        with engine.submit(job(max_tokens=400)) as reader:
            while chunks := reader.take(TIMEOUT):
                n_tokens += sum(chunk.n_tokens for chunk in chunks)
                gevent.sleep(0)  # some chunks come while it waits, some while it does not
        return n_tokens

    reading = [gevent.spawn(read) for _ in range(40)]

    assert [greenlet.get(timeout=3 * TIMEOUT) for greenlet in reading] == [400] * 40


def test_a_finished_reader_gives_nothing_more(engine):
    with engine.submit(job()) as reader:
        list(reader)

        assert reader.is_finished
        assert reader.take(TIMEOUT) == []
        assert list(reader) == []


def test_take_nowait_never_waits(slow):
    with queued(slow, job()) as (reader, _):
        assert reader.take_nowait() == []


def time_out_once(engine: Engine) -> int:
    """Tokens of a job that was waited for in vain before it began."""
    with queued(engine, job(max_tokens=3)) as (reader, begin):
        with pytest.raises(ReadTimeout, match=r"0\.01 s"):
            reader.take(0.01)
        begin()
        return sum(chunk.n_tokens for chunk in reader)


def test_a_timeout_leaves_the_reader_as_it_was(slow):
    gevent.get_hub()

    assert time_out_once(slow) == 3


def test_a_timeout_in_a_thread_leaves_the_reader_as_it_was(slow):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(time_out_once, slow).result(TIMEOUT) == 3


def test_timeouts_one_after_the_other_are_each_their_own(slow):
    with slow.submit(job(max_tokens=4)) as reader:
        taken = 0
        while not reader.is_finished:
            with contextlib.suppress(ReadTimeout):
                taken += sum(chunk.n_tokens for chunk in reader.take(0.02))

    assert taken == 4


# Without a descriptor.

SCARCE = """
    import gevent, asyncio, os, resource, sys, threading
    from corosrv.base.errors import NoDescriptor, QueueFull, ReadTimeout
    from tests.support.engines import SLOW, TIMEOUT, job, endless, opened, read_all
    from tests.support.waiting import wait_until

    def describe(answers):
        return [sum(chunk.n_tokens for chunk in chunks) for chunks in answers]

    with opened(model=SLOW, slots=4, queue=1000) as engine:
        {before}
        wait_until(lambda: engine.stats().readers == 0)  # whose descriptor would be free again below the limit
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, 1000))
        {test}
"""


def scarce(test: str, before: str = "read_all(engine.submit(job(max_tokens=1)))") -> str:
    """Returns what a process prints that has no descriptor left when it runs `test`."""
    return children.output(SCARCE.format(before=before, test=test.replace("\n", "\n" + " " * 8)))


def test_without_a_descriptor_a_job_is_read_to_its_end_and_counted():
    said = scarce("""
reader = engine.submit(job(max_tokens=3))
chunks = read_all(reader)
print([chunk.finish.value for chunk in chunks if chunk.finish], describe([chunks]), reader.is_finished)
print(engine.stats().readers_polled, engine.stats().eventfd_writes)
""")

    assert said.split("\n") == ["['length'] [3] True", "1 1"]


def test_without_a_descriptor_greenlets_read_side_by_side():
    said = scarce(
        """
readers = [engine.submit(job(max_tokens=5)) for _ in range(4)]
reading = [gevent.spawn(list, reader) for reader in readers]
print(describe([greenlet.get(timeout=TIMEOUT) for greenlet in reading]))
print(engine.stats().readers_polled, [reader.is_finished for reader in readers])
""",
        before="gevent.get_hub(); gevent.sleep(0); gevent.spawn(list, engine.submit(job(max_tokens=1))).join()",
    )

    assert said.split("\n") == ["[5, 5, 5, 5]", "4 [True, True, True, True]"]


def test_without_a_descriptor_a_reader_times_out_cancels_and_closes_as_others_do():
    said = scarce(
        """
with engine.submit(endless()) as reader:
    reader.take(TIMEOUT)
    try:
        reader.take(0.001)
        print("not in time")
    except ReadTimeout:
        print("in time")
    reader.cancel()
    print([chunk.finish.value for chunk in reader if chunk.finish])
left = engine.submit(endless())
left.take(TIMEOUT)
left.close()
wait_until(lambda: engine.stats().readers == 0 and engine.stats().running == 0)
try:
    engine.submit(endless()).fileno()
except NoDescriptor as error:
    print("ulimit" in str(error))
""",
        before="gevent.get_hub(); gevent.sleep(0); read_all(engine.submit(job(max_tokens=1)))",
    )

    assert said.split("\n") == ["in time", "['cancelled']", "True"]


def test_without_a_descriptor_asyncio_reads_as_well():
    said = scarce(
        """
async def read(reader):
    return [chunk async for chunk in reader]
print(describe([loop.run_until_complete(read(engine.submit(job(max_tokens=4))))]))
""",
        before="loop = asyncio.new_event_loop(); read_all(engine.submit(job(max_tokens=1)))",
    )

    assert said == "[4]"


def test_where_the_hub_cannot_watch_a_descriptor_it_looks_at_the_reader():
    """The last descriptor went to the reader, and none is left for the set in which the hub would watch it."""
    said = scarce(
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, 1000))
reader = engine.submit(job(max_tokens=4))
print(reader.fileno() >= 0, describe([gevent.spawn(list, reader).get(timeout=TIMEOUT)]))
""",
        before="gevent.get_hub(); gevent.sleep(0)",
    )

    assert said == "True [4]"


def test_the_log_says_that_the_descriptor_limit_is_too_low():
    said = scarce("""
import logging
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
for _ in range(3):
    read_all(engine.submit(job(max_tokens=1)))
""")

    (line,) = said.split("\n")
    assert line.startswith("WARNING the limit of ")
    assert "ulimit -n" in line


def test_a_readable_descriptor_that_nobody_waits_for_costs_nothing(slow):
    rounds: list[None] = []
    counter = gevent.get_hub().loop.prepare()
    with slow.submit(endless()) as reader:
        reader.take(TIMEOUT)  # its watcher runs from now on, and a word comes every 50 ms

        counter.start(rounds.append, None)
        gevent.sleep(0.3)
        counter.stop()

        assert reader.take_nowait()
    counter.close()
    assert len(rounds) < 20


def test_a_reader_that_was_not_read_for_a_while_wakes_again(slow: Engine):
    with slow.submit(job(max_tokens=8)) as reader:
        first = reader.take(TIMEOUT)
        gevent.sleep(0.15)

        rest = list(reader)

    assert sum(chunk.n_tokens for chunk in first + rest) == 8


def test_only_who_awaits_a_reader_pays_for_asyncio():
    assert children.output("import sys, corosrv.app; print('asyncio' in sys.modules)") == "False"
