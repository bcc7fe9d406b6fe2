"""Handlers that kill their processes: when calls are kept from them, and when single ones are let through again."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Unavailable, WorkerLost
from corosrv.contracts.jobs.infer import CapabilityTarget, InferJob, InferRequest
from corosrv.workers.dispatch.entries import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_CRASHES,
    WINDOW,
    Quarantine,
    QuarantineState,
)
from corosrv.workers.dispatch.entries import QUARANTINED as QUARANTINE_WORDS
from tests.workers.dispatch.hosts import FakeHost, Front, capability_card, card, error_of

FREE, QUARANTINED, TRYING = QuarantineState
KILLER, OTHER = card("killer"), card("other")


# Each step is an event and the time at which it happens, and the state afterwards.
CRASH, GOOD, UNTOLD, LOOK = "crash", "a good trial", "a trial that says nothing", "look"
COURSES = {
    "one crash is none": [(CRASH, 0, FREE), (LOOK, 1, FREE)],
    "two within the window": [(CRASH, 0, FREE), (CRASH, WINDOW - 1, QUARANTINED)],
    "two too far apart": [(CRASH, 0, FREE), (CRASH, WINDOW, FREE), (CRASH, WINDOW + 1, QUARANTINED)],
    "late crashes do not lengthen the pause": [
        (CRASH, 0, FREE), (CRASH, 1, QUARANTINED), (CRASH, 9, QUARANTINED), (LOOK, 1 + FIRST_PAUSE, TRYING),
    ],
    "two good trials release it": [
        (CRASH, 0, FREE), (CRASH, 0, QUARANTINED), (LOOK, 9.9, QUARANTINED), (GOOD, 10, TRYING), (GOOD, 11, FREE),
        (CRASH, 12, FREE), (CRASH, 13, QUARANTINED), (LOOK, 13 + FIRST_PAUSE, TRYING),
    ],
    "trials that say nothing do not": [
        (CRASH, 0, FREE), (CRASH, 0, QUARANTINED), (UNTOLD, 10, TRYING), (UNTOLD, 11, TRYING), (GOOD, 12, TRYING),
    ],
    "a trial that crashes doubles the pause": [
        (CRASH, 0, FREE), (CRASH, 0, QUARANTINED), (GOOD, 10, TRYING), (CRASH, 11, QUARANTINED),
        (LOOK, 30, QUARANTINED), (GOOD, 31, TRYING), (CRASH, 32, QUARANTINED), (LOOK, 71, QUARANTINED),
        (LOOK, 72, TRYING),
    ],
}  # fmt: skip


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_it_moves_as_the_table_says(course: list[tuple[str, float, QuarantineState]]):
    quarantine = Quarantine()

    for event, now, state in course:
        if event is CRASH:
            quarantine.crash(now)
        elif event in (GOOD, UNTOLD):
            assert quarantine.admits(now)
            assert quarantine.begin()
            quarantine.end_trial(event is GOOD)
        assert quarantine.state(now) is state, (event, now)


def quarantined(now: float = 0.0) -> Quarantine:
    quarantine = Quarantine()
    for _ in range(MAX_CRASHES):
        quarantine.crash(now)
    return quarantine


def test_the_pause_grows_to_its_bound():
    quarantine, now = quarantined(), 0.0

    for _ in range(40):
        now += quarantine.pause_left(now)
        assert quarantine.admits(now)
        quarantine.crash(now)

    assert quarantine.pause_left(now) == LONGEST_PAUSE


def test_one_trial_runs_at_a_time():
    quarantine = quarantined()
    assert not quarantine.admits(0.0)
    assert quarantine.admits(FIRST_PAUSE)
    assert quarantine.begin()

    assert not quarantine.admits(FIRST_PAUSE)
    quarantine.end_trial(True)

    assert quarantine.admits(FIRST_PAUSE)


def test_a_trial_that_crashed_and_has_no_end_yet_makes_room_for_the_next():
    quarantine = quarantined()
    assert quarantine.admits(FIRST_PAUSE)
    assert quarantine.begin()

    quarantine.crash(FIRST_PAUSE)

    assert quarantine.admits(3 * FIRST_PAUSE)


def test_processes_of_a_busy_handler_that_somebody_kills_are_not_its_fault():
    quarantine = Quarantine()
    quarantine.count_well(100 * MAX_CRASHES + 1, 0.0)

    assert [quarantine.crash(1.0) for _ in range(MAX_CRASHES)] == [False] * MAX_CRASHES
    assert quarantine.state(1.0) is FREE


def test_calls_from_before_the_window_excuse_nothing():
    quarantine = Quarantine()
    quarantine.count_well(10_000, 0.0)

    assert [quarantine.crash(WINDOW) for _ in range(MAX_CRASHES)] == [False, True]


# At the dispatcher.


@pytest.fixture
def front() -> Front:
    return Front.make()


def crash(front: Front, incarnation: int, *models: str) -> FakeHost:
    """Kills a worker that runs calls of these models, and returns the one that follows it."""
    host = front.add("p/0", KILLER, OTHER, incarnation=incarnation, n_slots=max(4, len(models)))
    readers = [front.call(model) for model in models]
    host.die()
    front.dispatcher.remove_host(host)
    front.dispatcher.note_crash([f"model:{model}:" for model in models])
    assert all(isinstance(error_of(reader), WorkerLost) for reader in readers)
    return front.add("p/0", KILLER, OTHER, incarnation=incarnation + 1, n_slots=4)


def state_of(front: Front, model: str) -> str:
    return next(standing.state for standing in front.dispatcher.standings() if standing.card.name == model)


def test_calls_of_a_handler_in_quarantine_are_told_when_to_come_back(front: Front):
    crash(front, 1, "killer")
    crash(front, 3, "killer")
    front.clock.pass_time(2.5)

    with pytest.raises(
        Unavailable, match=r"the model 'killer' .* its worker processes died .*; try again in 8 s"
    ) as told:
        front.call("killer")

    assert told.value.retry_after == 8
    assert (state_of(front, "killer"), state_of(front, "other")) == ("UNAVAILABLE", "READY")
    assert [standing.reason for standing in front.dispatcher.standings()] == [QUARANTINE_WORDS, ""]
    front.call("other")


def test_calls_that_a_crash_has_ended_do_not_excuse_it(front: Front):
    for incarnation in (1, 3):
        crash(front, incarnation, *["killer"] * 250)

    assert state_of(front, "killer") == "UNAVAILABLE"


def test_trial_calls_whose_clients_leave_say_nothing(front: Front):
    crash(front, 1, "killer")
    host = crash(front, 3, "killer")
    front.clock.pass_time(FIRST_PAUSE)

    for _ in range(3):
        front.call("killer").cancel()
        host.calls[0].finish()

    front.call("killer")
    with pytest.raises(Unavailable, match="quarantine"):
        front.call("killer")


def test_after_the_pause_a_handler_is_ready_also_for_those_who_look_before_they_call(front: Front):
    crash(front, 1, "killer")
    crash(front, 3, "killer")
    front.clock.pass_time(FIRST_PAUSE - 0.1)
    assert state_of(front, "killer") == "UNAVAILABLE"

    front.clock.pass_time(0.1)

    assert state_of(front, "killer") == "READY"


def test_after_the_pause_calls_of_a_capability_try_the_best_handler_again():
    front, best, other = Front.make(), capability_card("best", 1, type="x"), capability_card("other", 9, type="x", n=1)
    host = front.add("p/0", best, other, n_slots=4)
    for _ in range(2):
        front.dispatcher.note_crash([best.key])
    job = InferJob(CapabilityTarget({"type": "x"}), InferRequest())
    front.dispatcher.submit(job)

    front.clock.pass_time(FIRST_PAUSE)
    front.dispatcher.submit(job)

    assert [call.call.handler for call in host.calls] == [1, 0]


def test_of_those_that_ran_the_one_without_good_calls_is_blamed(front: Front):
    host = front.add("p/0", KILLER, OTHER, n_slots=4)
    for _ in range(3):
        front.call("other")
        host.calls[0].finish()
    crash(front, 2, "other", "killer")
    crash(front, 4, "killer", "other")

    with pytest.raises(Unavailable):
        front.call("killer")
    front.call("other")


def test_calls_that_wait_are_refused_when_the_quarantine_begins(front: Front):
    crash(front, 1, "killer")
    host = front.add("p/0", KILLER, OTHER, incarnation=3, n_slots=1)
    front.dispatcher.expect("p", [KILLER, OTHER])
    front.call("killer")
    waiting, other = front.call("killer"), front.call("other")

    front.dispatcher.remove_host(host)
    front.dispatcher.note_crash(["model:killer:"])

    assert isinstance(error_of(waiting), Unavailable)
    following = front.add("p/0", KILLER, OTHER, incarnation=4)
    following.calls[0].finish()
    assert not isinstance(error_of(other), Unavailable)


def test_trial_calls_that_end_well_let_all_calls_in_again(front: Front):
    crash(front, 1, "killer")
    host = crash(front, 3, "killer")
    front.clock.pass_time(FIRST_PAUSE)

    for _ in range(2):
        front.call("killer")
        with pytest.raises(Unavailable, match="quarantine") as told:
            front.call("killer")
        assert told.value.retry_after == 1
        host.calls[0].finish()

    front.call("killer")
    front.call("killer")
    assert len(host.calls) == 2
