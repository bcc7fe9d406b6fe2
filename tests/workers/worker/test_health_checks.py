from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from corosrv.workers.worker.parent.predict_call import HealthChecks


class Worker:
    """Remembers which checks it was asked for."""

    def __init__(self, limit: float = 5.0) -> None:
        self.asked: list[str] = []
        self.checks = HealthChecks(self.asked.append, limit)


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    with gevent.Timeout(10):
        yield


def test_callers_at_the_same_time_share_one_check() -> None:
    worker = Worker()
    callers = [gevent.spawn(worker.checks.ask) for _ in range(3)]
    gevent.idle()

    worker.checks.answer(worker.asked[0], "ill")

    assert [caller.get(timeout=5) for caller in callers] == ["ill"] * 3
    assert len(worker.asked) == 1


def test_every_check_is_asked_anew() -> None:
    worker = Worker()
    for outcome in ("ill", None, "ill again"):
        caller = gevent.spawn(worker.checks.ask)
        gevent.idle()
        worker.checks.answer(worker.asked[-1], outcome)
        assert caller.get(timeout=5) == outcome

    assert len(set(worker.asked)) == 3


def test_a_check_that_hangs_is_unhealthy_and_no_other_is_begun_on_top_of_it() -> None:
    worker = Worker(limit=0.01)

    assert "timed out after" in (worker.checks.ask() or "")
    assert "timed out after" in (worker.checks.ask() or "")
    assert len(worker.asked) == 1


def test_a_late_answer_lets_the_next_check_begin() -> None:
    worker = Worker(limit=0.01)
    worker.checks.ask()

    worker.checks.answer(worker.asked[0], None)
    worker.checks.ask()

    assert len(worker.asked) == 2


def test_an_answer_to_another_check_is_ignored() -> None:
    worker = Worker(limit=0.01)
    caller = gevent.spawn(worker.checks.ask)
    gevent.idle()

    worker.checks.answer("another", None)

    assert caller.get(timeout=5) is not None


def test_the_end_of_the_worker_wakes_whoever_waits() -> None:
    worker = Worker()
    caller = gevent.spawn(worker.checks.ask)
    gevent.idle()

    worker.checks.give_up("it died")

    assert caller.get(timeout=5) == "it died"
