"""Handlers that give several answers: the real child, over real channels."""

from __future__ import annotations

import pytest

from corosrv.workers.wire.calls import CallEnd, CallOutputs
from tests.support.app_child import AppChildProcess, number

COUNTERS = ["count", "count_async", "count_stream"]


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_each_answer_is_sent_and_then_the_end(child: AppChildProcess, name: str, n: int) -> None:
    answer = child.call(name, number("n", n), stream=True)

    assert answer.data == [{"n": [at]} for at in range(n)]
    assert answer.finals == [False] * n
    assert isinstance(answer.end, CallEnd)


@pytest.mark.parametrize("name", COUNTERS)
def test_what_is_printed_comes_before_the_answer_that_follows_it(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, [number("n", 2)])

    messages = [child.hear_message(slot) for _ in range(4)]

    assert [getattr(message, "data", None) for message in messages] == ["at 0\n", None, "at 1\n", None]
    child.hear(slot)


def test_an_answer_may_say_that_it_is_the_last(child: AppChildProcess) -> None:
    assert child.call("final").finals == [True]


@pytest.mark.parametrize("name", ["wide_count", "wide_count_async"])
def test_a_handler_waits_while_nobody_reads(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    before = child.next_beat().rss
    id = child.send(name, [number("n", 10_000)])
    assert isinstance(child.hear_message(slot), CallOutputs)

    during = child.next_beat().rss
    child.cancel(id, slot)

    assert during - before < 30_000_000  # of 1,000,000,000 bytes that it would send
    answer = child.hear(slot)[0]
    assert answer.failure.kind == "cancelled"
    assert len(answer.outputs) < 100


@pytest.mark.parametrize("name", ["count", "count_async"])
def test_a_cancel_closes_a_generator_at_its_next_yield(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    id = child.send(name, [number("n", 10**9)])
    child.await_log("at 1\n", slot)

    child.cancel(id, slot)

    answer = child.hear(slot)[0]
    assert answer.failure.kind == "cancelled"
    assert answer.logs.endswith("closed\n")


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize(("is_deadline", "kind"), [(False, "cancelled"), (True, "deadline")])
def test_a_cancel_says_why_the_stream_ends(child: AppChildProcess, name: str, is_deadline: bool, kind: str) -> None:
    slot = child.slot(name)
    id = child.send(name, [number("n", 10**9)])
    child.await_log("at 1\n", slot)

    child.cancel(id, slot, is_deadline=is_deadline)

    assert child.hear(slot)[0].failure.kind == kind


@pytest.mark.parametrize("name", COUNTERS)
def test_a_stream_ends_by_itself_when_its_time_is_over(child: AppChildProcess, name: str) -> None:
    answer = child.call(name, number("n", 10**9), seconds=0.1)

    assert answer.failure.kind == "deadline"


def test_an_error_after_some_answers_is_the_end(child: AppChildProcess) -> None:
    answer = child.call("fail_late", number("n", 6))

    assert answer.data == [{"n": [0]}]
    assert answer.failure.kind == "failed"


@pytest.mark.parametrize("n", [1, 4, 6, 13, 14, 15, 16])
def test_nonsense_in_a_stream_is_its_end(child: AppChildProcess, n: int) -> None:
    answer = child.call("nonsense_stream", number("n", n))

    assert answer.data == [{"n": [0]}]
    assert answer.failure.kind == "failed"
