"""The epoll set of a hub's readers: each write is told of once, to whoever waits, and to nobody else."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import gevent
import greenlet
import pytest

from corosrv.base.waits.waiters import AT_ONCE, EdgeSet, HubWaiter, edges_of
from tests.support import children
from tests.support.descriptors import n_descriptors
from tests.support.engines import TIMEOUT

Make = Callable[[], int]


@pytest.fixture
def edges() -> EdgeSet:
    return EdgeSet(gevent.get_hub())


@pytest.fixture
def eventfd() -> Iterator[Make]:
    made: list[int] = []

    def make() -> int:
        made.append(os.eventfd(0, os.EFD_NONBLOCK))
        return made[-1]

    yield make
    for fd in made:
        os.close(fd)


def write(fd: int) -> None:
    os.eventfd_write(fd, 1)


def test_each_write_is_told_of_once_and_needs_no_read(edges, eventfd):
    told: list[int] = []
    fd = eventfd()
    edges.add(fd, lambda: told.append(fd))

    for n_writes in range(1, 4):
        write(fd)
        gevent.idle()
        assert len(told) == n_writes

    edges.remove(fd)


def test_what_was_written_before_is_told_of(edges, eventfd):
    told: list[bool] = []
    fd = eventfd()
    write(fd)

    edges.add(fd, lambda: told.append(True))
    gevent.idle()

    assert told
    edges.remove(fd)


def test_the_hub_turns_to_others_between_many(edges, eventfd):
    order: list[str] = []
    fds = [eventfd() for _ in range(3 * AT_ONCE)]
    for fd in fds:
        edges.add(fd, lambda: order.append("edge"))
    hub_turns = gevent.get_hub().loop.prepare()
    hub_turns.start(order.append, "turn")

    for fd in fds:
        write(fd)
    while order.count("edge") < len(fds):
        gevent.sleep(0)
    hub_turns.stop()
    hub_turns.close()

    assert max(len(run) for run in "".join(word[0] for word in order).split("t")) == AT_ONCE
    for fd in fds:
        edges.remove(fd)


def test_one_that_was_removed_meanwhile_is_not_called(edges, eventfd):
    first, second = eventfd(), eventfd()
    called: list[int] = []

    def leave(me: int, other: int) -> None:
        called.append(me)
        edges.remove(other)

    edges.add(first, lambda: leave(first, second))
    edges.add(second, lambda: leave(second, first))
    write(first)
    write(second)
    gevent.idle()

    assert len(called) == 1
    edges.remove(called[0])


@pytest.mark.filterwarnings("ignore")
def test_an_error_in_one_call_keeps_no_edge_from_the_others(edges, eventfd, capsys):
    told: list[int] = []
    fds = [eventfd() for _ in range(3)]
    for fd in fds:
        ending = greenlet.greenlet(lambda fd=fd: told.append(fd) or 1 / 0, parent=gevent.get_hub())
        edges.add(fd, ending.switch)

    for fd in fds:
        write(fd)
    gevent.idle()

    assert sorted(told) == sorted(fds)
    assert capsys.readouterr().err.count("ZeroDivisionError: ") == 3
    for fd in fds:
        edges.remove(fd)


@pytest.mark.own_process
def test_a_set_without_members_holds_no_descriptor(edges, eventfd):
    fd = eventfd()
    before = n_descriptors()

    edges.add(fd, lambda: None)
    assert n_descriptors() == before + 1
    edges.remove(fd)

    assert n_descriptors() == before


def test_a_thread_has_one_set():
    hub = gevent.get_hub()

    assert edges_of(hub) is edges_of(hub)
    assert gevent.get_hub().threadpool.apply(lambda: edges_of(gevent.get_hub())) is not edges_of(hub)


def test_a_hub_after_another_in_its_thread_has_a_set_of_its_own():
    def two() -> tuple[EdgeSet, EdgeSet]:
        first = edges_of(gevent.get_hub())
        gevent.get_hub().destroy(destroy_loop=True)
        return first, edges_of(gevent.get_hub())

    with ThreadPoolExecutor(1) as pool:
        first, second = pool.submit(two).result(TIMEOUT)

    assert second is not first


FORKING = """
    import gevent, os
    from corosrv.base.waits.waiters import edges_of

    fd = os.eventfd(0)
    told = []
    edges = edges_of(gevent.get_hub())
    edges.add(fd, lambda: told.append(fd))
    if (child := gevent.os.fork()) == 0:
        os.eventfd_write(fd, 1)
        gevent.idle()
        edges.remove(fd)
        assert edges_of(gevent.get_hub()) is not edges
        os._exit(len(told))
    _, status = os.waitpid(child, 0)
    gevent.idle()
    first = len(told)
    os.eventfd_write(fd, 1)
    gevent.idle()
    print(os.waitstatus_to_exitcode(status), first, len(told))
"""


def test_a_child_takes_no_edge_of_its_parent():
    assert children.output(FORKING) == "0 1 2"


def test_an_end_that_comes_along_with_data_is_told_of_with_them():
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(HubWaiter(gevent.get_hub(), ours.fileno())) as waiter:
        numbers = waiter.ended_numbers
        assert numbers is not None
        theirs.sendall(b"data")
        waiter.wait(TIMEOUT)
        assert ours.fileno() not in numbers

        theirs.sendall(b"more")
        theirs.close()
        waiter.wait(TIMEOUT)

        assert ours.fileno() in numbers
    assert not numbers
