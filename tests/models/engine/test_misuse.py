"""Readers in the wrong hands: another thread, another greenlet, a child, or after their end."""

from concurrent.futures import ThreadPoolExecutor

import gevent
import pytest

from corosrv.base.errors import Misuse, UsedAfterClose, WrongThread
from tests.support import children
from tests.support.engines import TIMEOUT, job


def test_another_thread_is_told_so(engine):
    with engine.submit(job()) as reader, ThreadPoolExecutor(1) as pool:
        for call in (lambda: reader.take(TIMEOUT), reader.take_nowait, lambda: list(reader)):
            with pytest.raises(WrongThread, match="thread that reads"):
                pool.submit(call).result(TIMEOUT)

        assert sum(chunk.n_tokens for chunk in reader) == 8


def test_a_closed_reader_is_told_so(engine):
    reader = engine.submit(job())
    reader.close()
    reader.close()
    reader.cancel()

    for call in (lambda: reader.take(TIMEOUT), reader.take_nowait, reader.fileno, lambda: list(reader)):
        with pytest.raises(UsedAfterClose):
            call()


def test_two_greenlets_on_one_reader_are_told_so(slow):
    with slow.submit(job()) as reader:
        first = gevent.spawn(list, reader)
        gevent.idle()

        with pytest.raises(Misuse, match="a reader of its own"):
            reader.take(TIMEOUT)

        assert sum(chunk.n_tokens for chunk in first.get(timeout=TIMEOUT)) == 8


FORKING = """
    import os, sys
    from corosrv.models.engine import Engine
    from corosrv.base.errors import UsedAfterFork
    from tests.support.engines import SLOW, job, opened, read_all

    with opened(model=SLOW) as engine:
        reader = engine.submit(job(max_tokens=4))
        fd = reader.fileno()
        child = os.fork()
        if child == 0:
            for call in (reader.take_nowait, lambda: reader.take(5), reader.cancel, lambda: engine.submit(job())):
                try:
                    call()
                except UsedAfterFork as error:
                    assert "--preload" in str(error)
                else:
                    os._exit(1)
            reader.close()
            engine.close()
            os._exit(0 if not os.path.exists(f"/proc/self/fd/{fd}") else 2)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), sum(chunk.n_tokens for chunk in read_all(reader)))
"""


def test_a_child_is_told_so_and_does_not_disturb_its_parent():
    assert children.output(FORKING) == "0 4"
