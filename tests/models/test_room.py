"""Idle models make room for those that are asked for."""

from __future__ import annotations

import gc

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import State, Text
from tests.models.conftest import MODEL_BYTES, THREE
from tests.models.requests import asking, failure, status, wait_status
from tests.support.engines import TIMEOUT, answer, job, read_all

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_least_recently_used_makes_room(open_pool):
    pool = open_pool(THREE, model_bytes=2 * MODEL_BYTES)
    for name in ("a", "b", "a"):
        answer(pool, job(model=name))

    answer(pool, job(model="c"))

    assert status(pool) == {"a": "loaded", "b": "unloaded", "c": "loaded"}


def test_a_model_with_a_job_is_not_unloaded_and_the_request_waits_for_its_end(open_pool):
    pool = open_pool(model_bytes=MODEL_BYTES)
    reader = pool.submit(job(model="a"))
    request = asking(pool, "b")
    assert status(pool) == {"a": "loaded", "b": "unloaded"}

    read_all(reader)
    del reader

    assert request.get(timeout=TIMEOUT)
    assert status(pool) == {"a": "unloaded", "b": "loaded"}


def test_a_reader_that_is_dropped_unread_frees_its_model(open_pool):
    pool = open_pool(model_bytes=MODEL_BYTES)
    reader = pool.submit(job(model="a"))
    request = asking(pool, "b")

    del reader
    gc.collect()

    assert request.get(timeout=TIMEOUT)


def test_a_vocabulary_in_use_keeps_its_model(open_pool):
    pool = open_pool(model_bytes=MODEL_BYTES)
    vocabulary = pool.vocabulary("a")
    request = asking(pool, "b")

    assert vocabulary.count(Text("Hello")) == 5
    assert status(pool)["a"] == "loaded"
    del vocabulary

    assert request.get(timeout=TIMEOUT)


def test_who_waits_for_room_in_vain_is_told_so(open_pool):
    pool = open_pool(model_bytes=MODEL_BYTES, model_wait_s=0.05)

    with pool.submit(job(model="a")):
        refused = failure(asking(pool, "b"))

    assert isinstance(refused, errors.Starting)
    assert refused.retry_after


def test_who_leaves_before_there_is_room_wants_it_no_longer(open_pool):
    pool = open_pool(model_bytes=MODEL_BYTES)
    reader = pool.submit(job(model="a"))
    asking(pool, "b").kill(timeout=TIMEOUT)

    del reader
    gevent.idle()

    assert status(pool) == {"a": "loaded", "b": "unloaded"}


def test_a_model_that_can_never_fit_fails_with_both_numbers(open_pool):
    pool = open_pool("a=synthetic:?slots=1,big=synthetic:?slots=5", model_bytes=MODEL_BYTES)

    with pytest.raises(errors.ModelFailed, match=rf"{5 * 512 * 4} bytes, and COROSRV_MODEL_BYTES allows {MODEL_BYTES}"):
        pool.card("big")
    assert answer(pool, job(model="a"))


def test_an_idle_model_is_unloaded_after_its_time_and_comes_back(open_pool):
    pool = open_pool("synthetic:", model_idle_s=0.05)

    wait_status(pool, synthetic="unloaded")

    assert pool.state is State.READY
    pool.check()
    assert answer(pool, job())


def test_a_model_in_use_is_not_idle(open_pool):
    pool = open_pool(model_idle_s=0.05)
    with pool.submit(job(model="b")):
        wait_status(pool, a="unloaded")
        gevent.sleep(0.1)
        assert status(pool)["b"] == "loaded"

    wait_status(pool, b="unloaded")


def test_closing_an_engine_does_not_stop_the_others(open_pool, workshop):
    pool = open_pool()
    answer(pool, job(model="b"))
    workshop.may_close.clear()
    pool.unload("b")
    gevent.idle()

    assert status(pool)["b"] == "unloaded"
    assert pool.model_states()["b"] == "unloading"
    assert answer(pool, job(model="a"))


def test_a_request_during_unloading_waits_and_loads_it_again(open_pool, workshop):
    pool = open_pool()
    answer(pool, job(model="b"))
    workshop.may_close.clear()
    pool.unload("b")
    request = asking(pool, "b")

    workshop.may_close.set()

    assert request.get(timeout=TIMEOUT)
    assert workshop.names() == ["a", "b", "b"]
