"""One budget of memory for models and worker processes: what one side holds, the other must do without."""

from __future__ import annotations

import gevent
import pytest

from corosrv.contracts import settings
from corosrv.models.pool import ModelPool
from tests.models.conftest import MODEL_BYTES, TWO
from tests.models.requests import asking, status, wait_status
from tests.support.engines import TIMEOUT, answer, job

pytestmark = pytest.mark.usefixtures("quiet")


class Workers:
    held = 0

    def memory(self) -> int:
        return self.held


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def pool(workshop, workers):
    gevent.get_hub()
    chosen = {"model": TWO, "slots": 4, "ctx": 512, "threads": 1, "model_bytes": 2 * MODEL_BYTES}
    pool = ModelPool(settings.load(chosen, environ={}), workshop, memory_elsewhere=workers.memory)
    pool.start()
    yield pool
    workshop.may_open.set()
    workshop.may_close.set()
    pool.close()


def test_a_model_is_unloaded_where_workers_need_the_room(pool: ModelPool, workers: Workers):
    workers.held = MODEL_BYTES
    answer(pool, job(model="a"))

    answer(pool, job(model="b"))

    wait_status(pool, a="unloaded", b="loaded")
    assert pool.held_bytes == MODEL_BYTES


def test_a_model_waits_until_workers_let_go_of_memory(pool: ModelPool, workers: Workers):
    answer(pool, job(model="a"))
    workers.held = MODEL_BYTES
    with pool.submit(job(model="a")):
        request = asking(pool, "b")
        assert status(pool) == {"a": "loaded", "b": "unloaded"}

        workers.held = 0

        assert request.get(timeout=TIMEOUT)
