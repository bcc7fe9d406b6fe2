"""What is done in a greenlet where there is a hub is done in a thread where there is none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import gevent
import gevent.event
import pytest

from corosrv.base.waits import call_later, own_hub, spawn


@pytest.fixture
def plain_thread() -> ThreadPoolExecutor:
    """A thread that has no hub."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_a_plain_thread_has_no_hub_and_gets_none_by_being_asked(plain_thread: ThreadPoolExecutor) -> None:
    assert [plain_thread.submit(own_hub).result(5) for _ in range(2)] == [None, None]


def test_where_there_is_a_hub_greenlets_run() -> None:
    assert own_hub() is gevent.get_hub()
    seen: list[object] = []
    done = gevent.event.Event()

    spawn("test", lambda word: seen.append((word, threading.get_ident())), "spawned")
    call_later(0.01, done.set)

    assert done.wait(5)
    assert seen == [("spawned", threading.get_ident())]


def test_where_there_is_no_hub_threads_run(plain_thread: ThreadPoolExecutor) -> None:
    names: list[str] = []
    done = threading.Event()

    plain_thread.submit(spawn, "test-thread", lambda: names.append(threading.current_thread().name)).result(5)
    plain_thread.submit(call_later, 0.01, done.set).result(5)

    assert done.wait(5)
    assert names == ["test-thread"]


def test_only_the_hubs_and_the_turns_look_for_hubs_behind_gevent_s_back() -> None:
    """The turns of long computations look too, at run time: their module loads no gevent and stands lower."""
    from tests.test_layers import MODULES

    looking = [name for name, path in MODULES.items() if "gevent._hub_local" in path.read_text()]

    assert sorted(looking) == ["corosrv.base.processor", "corosrv.base.waits.elsewhere"]
