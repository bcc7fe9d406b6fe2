"""Calls with an Idempotency-Key."""

from __future__ import annotations

import gc
import weakref

import pytest

from corosrv.base.errors import CallCancelled, Conflict, HandlerFailed, KeyReused, QueueFull
from corosrv.contracts.jobs.infer import InferEnd
from corosrv.workers.dispatch.answers import HandlerReader, digest_of
from tests.workers.dispatch.hosts import Front, card, error_of, outputs, read, text, texts


@pytest.fixture
def front() -> Front:
    return Front.make()


def test_the_second_request_with_a_key_gets_the_answer_of_the_first(front: Front):
    host = front.add("p/0")
    first = front.call("add", text("a", b"1"), idempotency_key="k")
    host.calls[0].finish(outputs(text("out", b"2")))

    second = front.call("add", text("a", b"1"), idempotency_key="k", request_id="another")

    assert read(second) == read(first)
    assert second.is_replayed
    assert not first.is_replayed
    assert second.is_finished
    assert second.card == first.card
    assert host.n_started == 1


def test_a_failure_of_what_may_have_run_is_an_answer_too(front: Front):
    host = front.add("p/0")
    front.call(idempotency_key="k")
    host.calls[0].fail(HandlerFailed("no"))

    assert isinstance(error_of(front.call(idempotency_key="k")), HandlerFailed)
    assert host.n_started == 1


def test_while_the_first_runs_the_second_is_told_to_come_back(front: Front):
    front.add("p/0")
    front.call(idempotency_key="k")

    with pytest.raises(Conflict) as refusal:
        front.call(idempotency_key="k")

    assert refusal.value.retry_after


def test_another_request_with_the_same_key_is_refused(front: Front):
    host = front.add("p/0", card("add"), card("sub"))
    front.call("add", text("a", b"1"), idempotency_key="k")

    with pytest.raises(KeyReused):
        front.call("add", text("a", b"2"), idempotency_key="k")
    host.calls[0].finish()
    with pytest.raises(KeyReused):
        front.call("sub", text("a", b"1"), idempotency_key="k")


def test_keys_of_different_callers_are_different(front: Front):
    host = front.add("p/0", n_slots=2)
    front.call(idempotency_key="k", caller="x")
    front.call(idempotency_key="k", caller="y")

    assert host.n_started == 2


def test_a_call_that_was_refused_leaves_its_key_free(front: Front):
    host = front.add("p/0", card(max_queue=0))
    front.call()
    with pytest.raises(QueueFull):
        front.call(idempotency_key="k")
    host.calls[0].finish()

    front.call(idempotency_key="k")

    assert host.n_started == 2


def test_a_call_that_was_cancelled_before_it_ran_leaves_its_key_free(front: Front):
    host = front.add("p/0")
    front.call()
    front.call(idempotency_key="k").cancel()
    host.calls[0].finish()

    front.call(idempotency_key="k")

    assert host.n_started == 2


def test_a_call_that_was_cancelled_while_it_ran_is_not_run_again(front: Front):
    host = front.add("p/0")
    front.call(idempotency_key="k").cancel()

    assert isinstance(error_of(front.call(idempotency_key="k")), CallCancelled)
    assert host.n_started == 1


def test_a_stream_is_given_again_answer_by_answer(front: Front):
    host = front.add("p/0", card("add", is_stream=True))
    first = front.call(stream=True, idempotency_key="k")
    host.calls[0].send(outputs(text("out", b"1")))
    host.calls[0].finish(outputs(text("out", b"2")))

    second = front.call(stream=True, idempotency_key="k")

    assert texts(read(second)) == texts(read(first)) == [b"1", b"2"]
    assert second.is_replayed
    assert host.n_started == 1


def test_a_stream_that_failed_half_way_fails_half_way_again(front: Front):
    host = front.add("p/0", card("add", is_stream=True))
    front.call(stream=True, idempotency_key="k")
    host.calls[0].send(outputs(text("out", b"1")))
    host.calls[0].fail(HandlerFailed("no"))

    *answers, end = read(front.call(stream=True, idempotency_key="k"))

    assert texts(answers) == [b"1"]
    assert isinstance(end, InferEnd)
    assert isinstance(end.error, HandlerFailed)


def test_a_stream_that_is_too_large_to_be_kept_leaves_its_key_free():
    front = Front.make(idempotency_bytes=3000)
    host = front.add("p/0", card("add", is_stream=True))
    front.call(stream=True, idempotency_key="k")
    for _ in range(4):
        host.calls[0].send(outputs(text("out", b"x" * 700)))
    host.calls[0].finish()

    front.call(stream=True, idempotency_key="k")

    assert host.n_started == 2


def test_an_error_that_is_kept_keeps_nothing_of_who_met_it(front: Front):
    class Body:
        pass

    def meet(reader: HandlerReader) -> weakref.ref[Body]:
        body = Body()
        with pytest.raises(HandlerFailed):
            raise error_of(reader) or AssertionError
        return weakref.ref(body)

    host = front.add("p/0")
    first = front.call(idempotency_key="k")
    host.calls[0].fail(HandlerFailed("no"))

    bodies = [meet(first), meet(front.call(idempotency_key="k")), meet(front.call(idempotency_key="k"))]
    host.calls.clear()
    del first
    gc.collect()

    assert [body() for body in bodies] == [None, None, None]


def test_an_answer_that_is_too_large_is_not_kept():
    front = Front.make(idempotency_bytes=2000)
    host = front.add("p/0")
    front.call(idempotency_key="k")
    host.calls[0].finish(outputs(text("out", b"x" * 2000)))

    front.call(idempotency_key="k")

    assert host.n_started == 2


def test_without_room_for_answers_keys_are_ignored():
    front = Front.make(idempotency_bytes=0)
    host = front.add("p/0", n_slots=2)
    front.call(idempotency_key="k")

    front.call(idempotency_key="k")

    assert host.n_started == 2


def test_the_digest_is_of_all_that_is_asked_for(front: Front):
    base = front.job("add", text("a", b"1"))
    others = [
        front.job("sub", text("a", b"1")),
        front.job("add", text("a", b"2")),
        front.job("add", text("b", b"1")),
        front.job("add", text("a", b"1"), text("b", b"")),
        front.job("add", text("a", b"1"), names=["out"]),
        front.job("add", text("a", b"1"), version="2"),
    ]

    assert digest_of(front.job("add", text("a", b"1"), priority=1, seconds=5)) == digest_of(base)
    assert len({digest_of(job) for job in [base, *others]}) == len(others) + 1


def test_the_answer_can_be_read_again_and_again(front: Front):
    host = front.add("p/0")
    front.call(idempotency_key="k")
    host.calls[0].finish(outputs(text("out", b"2")))

    for _ in range(3):
        assert texts(read(front.call(idempotency_key="k"))) == [b"2"]
