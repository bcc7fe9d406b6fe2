"""Requests to a pool of models, and what the pool says of itself."""

from __future__ import annotations

import gevent

from corosrv.models.pool import ModelPool
from tests.support.engines import TIMEOUT, answer, job
from tests.support.waiting import wait_until


def status(pool: ModelPool) -> dict[str, str]:
    return {card.id: card.status for card in pool.models()}


def wait_status(pool: ModelPool, **wanted: str) -> None:
    wait_until(lambda: wanted.items() <= status(pool).items())


def asking(pool: ModelPool, model: str) -> gevent.Greenlet:
    """A request under way, seen by the pool."""
    request = gevent.spawn(answer, pool, job(model=model))
    gevent.idle()
    return request


def failure(request: gevent.Greenlet) -> BaseException:
    request.join(TIMEOUT)
    assert request.exception is not None
    return request.exception
