"""Cancels and deadlines of calls: the real child, over real channels."""

from __future__ import annotations

import pytest

from corosrv.workers.wire.calls import CallEnd
from tests.support.app_child import AppChildProcess, number

WAYS = [("wait", 0), ("wait", 1), ("wait", 2), ("wait_async", 0), ("wait_async", 1), ("burn", 0), ("burn_loop", 0)]


def await_cancels(child: AppChildProcess, of: str) -> None:
    """Waits until the worker has taken what was cancelled, of this handler: it takes one cancel after the other."""
    name = "wait_async" if of == "wait" else "wait"
    slot = child.slot(name)
    id = child.send(name, [number("n", 0)])
    child.cancel(id, slot)
    child.hear(slot)


@pytest.mark.parametrize(("name", "n"), WAYS)
@pytest.mark.parametrize(("is_deadline", "kind"), [(False, "cancelled"), (True, "deadline")])
def test_a_call_ends_as_it_is_told(child: AppChildProcess, name: str, n: int, is_deadline: bool, kind: str) -> None:
    slot = child.slot(name)
    id = child.send(name, [number("n", n)])
    child.await_log("burns" if name.startswith("burn") else "waits", slot)

    child.cancel(id, slot, is_deadline=is_deadline)

    answer = child.hear(slot)[0]
    assert (answer.failure.kind, answer.data) == (kind, [])


@pytest.mark.parametrize(("name", "n"), [("wait", 0), ("wait", 1), ("wait_async", 0)])
def test_a_handler_learns_of_its_deadline_by_itself(child: AppChildProcess, name: str, n: int) -> None:
    answer = child.call(name, number("n", n), seconds=0.05)

    assert answer.failure.kind == "deadline"


def test_a_coroutine_is_cancelled_where_it_waits(child: AppChildProcess) -> None:
    slot = child.slot("wait_async")
    id = child.send("wait_async", [number("n", 1)])
    child.await_log("waits", slot)

    child.cancel(id, slot)

    assert child.hear(slot)[0].logs == "CancelledError True\n"


def test_a_coroutine_that_takes_no_cancel_is_reported_as_cancelled(child: AppChildProcess) -> None:
    slot = child.slot("wait_async")
    id = child.send("wait_async", [number("n", 2)])
    child.await_log("waits", slot)

    child.cancel(id, slot)

    assert child.hear(slot)[0].failure.kind == "cancelled"


@pytest.mark.parametrize("name", ["wait", "wait_async", "count", "batch"])
def test_a_cancel_that_overtakes_its_call_counts(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.cancel(10**9, slot)
    child.cancel(10**9, slot)
    await_cancels(child, name)

    answer = child.call(name, number("n", 1), id=10**9)

    assert answer.failure.kind == "cancelled"
    assert "waits" not in answer.logs


@pytest.mark.parametrize("name", ["add", "coroutine"])
def test_a_cancel_of_another_call_changes_nothing(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    inputs = [number("a", 1), number("b", 1), number("n", 1)]
    id = child.send(name, inputs)
    child.hear(slot)
    child.cancel(id, slot)
    child.cancel(id - 1, slot)
    await_cancels(child, name)

    answer = child.call(name, *inputs)

    assert isinstance(answer.end, CallEnd)


@pytest.mark.parametrize("name", ["wait", "wait_async"])
@pytest.mark.parametrize("distance", [-1, 1])
def test_a_call_that_runs_is_not_cancelled_by_anothers_id(child: AppChildProcess, name: str, distance: int) -> None:
    slot = child.slot(name)
    id = child.send(name, [number("n", 1)])
    child.await_log("waits", slot)

    child.cancel(id + distance, slot, is_deadline=True)
    await_cancels(child, name)

    child.cancel(id, slot)
    assert child.hear(slot)[0].failure.kind == "cancelled"  # the cancel that comes first says why


@pytest.mark.parametrize("name", ["burn", "burn_loop"])
def test_a_handler_that_keeps_the_interpreter_stops_no_heartbeat(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    id = child.send(name, [number("n", 1)])
    child.await_log("burns", slot)
    n_beats = len(child.beats)

    beats = [child.next_beat(), child.next_beat()]
    child.cancel(id, slot)

    assert len(child.beats) >= n_beats + 2
    assert all(beat.in_flight == 1 for beat in beats)
    assert all(beat.rss > 1_000_000 for beat in beats)
    child.hear(slot)
