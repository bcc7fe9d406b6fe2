"""Who asks for a model that is not there waits for it, and for no other."""

from __future__ import annotations

import pytest

from corosrv.base import errors
from tests.models.requests import asking, failure, status, wait_status
from tests.support.descriptors import n_descriptors
from tests.support.engines import TIMEOUT, answer, job

pytestmark = pytest.mark.usefixtures("quiet")


def test_two_requests_for_one_model_load_it_once_and_both_are_answered(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    requests = [asking(pool, "b"), asking(pool, "b")]
    assert status(pool)["b"] == "loading"

    workshop.may_open.set()

    assert len({request.get(timeout=TIMEOUT) for request in requests}) == 1
    assert workshop.names() == ["a", "b"]


def test_a_request_for_another_model_does_not_wait(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    asking(pool, "b")

    assert answer(pool, job(model="a"))


def test_a_waiter_that_leaves_takes_nothing_with_it(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    leaving, staying = asking(pool, "b"), asking(pool, "b")

    leaving.kill(timeout=TIMEOUT)
    workshop.may_open.set()

    assert staying.get(timeout=TIMEOUT)


def test_a_load_goes_on_when_its_only_waiter_left(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    asking(pool, "b").kill(timeout=TIMEOUT)

    workshop.may_open.set()

    wait_status(pool, b="loaded")


class Client:
    """Leaves when it is told to."""

    is_gone = False
    is_closed = False

    def watch(self, on_gone):
        self._on_gone = on_gone
        return self

    def leave(self) -> None:
        self.is_gone = True
        self._on_gone()

    def close(self) -> None:
        self.is_closed = True


def test_a_client_that_leaves_ends_its_waiting(open_pool, workshop):
    client = Client()
    pool = open_pool(watch=client.watch)
    workshop.may_open.clear()
    request = asking(pool, "b")

    client.leave()

    assert isinstance(failure(request), errors.ClientGone)
    assert client.is_closed


def test_waiting_has_an_end(open_pool, workshop):
    pool = open_pool(model_wait_s=0.05)
    workshop.may_open.clear()

    refused = failure(asking(pool, "b"))

    assert isinstance(refused, errors.Starting)
    assert "'b' was not loaded within 0.05 s" in str(refused)


@pytest.mark.own_process
def test_waiters_leave_no_descriptor_behind(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    requests = [asking(pool, "b") for _ in range(5)]
    waiting = n_descriptors("eventfd")

    for request in requests:
        request.kill(timeout=TIMEOUT)

    assert n_descriptors("eventfd") <= waiting - 5
