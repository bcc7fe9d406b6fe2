"""Clients that keep their places in the pool while they have no greenlet."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from corosrv.web.http.served_client import ClientPool


@pytest.fixture
def pool() -> ClientPool:
    return ClientPool(2)


def park(pool: ClientPool) -> None:
    pool.spawn(pool.park).join(5)


def test_a_parked_client_keeps_its_place_and_no_greenlet(pool: ClientPool):
    park(pool)

    assert (len(pool), pool.free_count(), len(pool.greenlets)) == (1, 1, 0)


def test_a_pool_of_parked_clients_is_full(pool: ClientPool):
    park(pool)
    park(pool)

    assert pool.full()
    assert not pool._semaphore.acquire(blocking=False)


def test_a_client_that_is_resumed_gives_its_place_back_at_its_end(pool: ClientPool):
    park(pool)
    park(pool)
    may_end = Event()

    pool.resume(may_end.wait, 5)
    assert (len(pool), pool.free_count()) == (2, 0)
    may_end.set()
    assert pool.join(5)

    assert (len(pool), pool.free_count()) == (1, 1)
    assert pool._semaphore.acquire(blocking=False)


def test_a_client_may_be_parked_again(pool: ClientPool):
    park(pool)

    pool.resume(pool.park)
    gevent.idle()
    pool.join(5)

    assert (len(pool), pool.free_count(), len(pool.greenlets)) == (1, 1, 0)
