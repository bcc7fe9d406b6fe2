"""What the engines of all fronts take, and how those that nobody uses make room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corosrv.models.engine.process.budget import EngineBudget
from corosrv.models.engine.process.connector import digest_of, lock_path
from corosrv.models.engine.process.remote import RemoteEngine
from tests.models.engine.process.conftest import OpenFront, has_ended, pid_of, settings_of
from tests.support.engines import SLOW, answer, job
from tests.support.waiting import wait_until as until

SMALL, LARGE = settings_of(), settings_of(ctx=1024)


@pytest.fixture
def budget(run_dir: str) -> EngineBudget:
    return EngineBudget(run_dir)


def test_an_engine_counts_for_all_from_its_reservation_until_its_process_has_ended(
    budget: EngineBudget, run_dir: str
) -> None:
    other = EngineBudget(run_dir)
    with budget.lock_out_others():
        budget.reserve(SMALL, 100)
        assert other.held_bytes([SMALL, LARGE]) == (100, [True, False])
        other.reserve(SMALL, 50)  # is too late
    front = RemoteEngine(SMALL, run_dir, budget.take_reserved)
    front.open()
    pid = pid_of(front)

    budget.note(SMALL, 90)
    assert other.held_bytes([SMALL]) == (90, [True])
    front.close()
    assert other.held_bytes([SMALL]) == (90, [True])  # it waits for other fronts
    other.ask_for_room(1)
    until(lambda: has_ended(pid))

    assert other.held_bytes([SMALL]) == (0, [False])


def test_a_reservation_that_comes_to_nothing_is_given_up(budget: EngineBudget, run_dir: str) -> None:
    budget.reserve(SMALL, 100)
    budget.give_up(SMALL)
    budget.give_up(SMALL)

    assert EngineBudget(run_dir).held_bytes([SMALL]) == (0, [False])
    budget.reserve(SMALL, 70)
    assert budget.held_bytes([SMALL]) == (70, [True])


def opened(run_dir: str, **chosen: object) -> tuple[RemoteEngine, list[str]]:
    """Opens an engine that notes when it is asked to leave, and leaves."""
    asked: list[str] = []

    def leave() -> None:
        asked.append("")
        front.close()

    front = RemoteEngine(settings_of(**chosen), run_dir, on_release=leave)
    front.open()
    return front, asked


def test_the_least_recently_used_is_asked_first_and_all_of_its_fronts(budget: EngineBudget, run_dir: str) -> None:
    small, large = opened(run_dir), opened(run_dir, ctx=1024)
    again = opened(run_dir)
    for settings, used_at in ((SMALL, 1000), (LARGE, 2000)):
        budget.note(settings, 100)
        os.utime(lock_path(run_dir, digest_of(settings)), (used_at, used_at))
    pid = pid_of(small[0])

    budget.ask_for_room(100)
    until(lambda: has_ended(pid))

    assert [len(asked) for _, asked in (small, again, large)] == [1, 1, 0]
    large[0].close()


def test_an_engine_that_computes_is_not_asked_and_another_one_is(budget: EngineBudget, run_dir: str) -> None:
    (small, asked), (large, _) = opened(run_dir, model=SLOW), opened(run_dir, ctx=1024)
    used_at = {digest_of(settings_of(model=SLOW)): 1000, digest_of(LARGE): 2000}
    for settings in (settings_of(model=SLOW), LARGE):
        budget.note(settings, 100)
    pid = pid_of(large)

    with small.submit(job(max_tokens=400)) as reader:
        next(iter(reader))
        for digest, seconds in used_at.items():
            os.utime(lock_path(run_dir, digest), (seconds, seconds))
        until(lambda: budget.ask_for_room(100) or has_ended(pid))

        assert asked == []
    small.close()


def test_a_use_makes_an_engine_the_latest(open_front: OpenFront, budget: EngineBudget, run_dir: str) -> None:
    front, _ = open_front(), open_front(ctx=1024)
    path = Path(lock_path(run_dir, digest_of(SMALL)))
    os.utime(path, (1000, 1000))

    answer(front, job())

    until(lambda: path.stat().st_mtime > 1000)
    assert [engine.digest for engine in budget.running()] == [digest_of(LARGE), digest_of(SMALL)]
