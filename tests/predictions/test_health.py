"""The states of the service, and how they are read from a worker."""

import pytest

from corosrv.errors import IllegalTransition
from corosrv.jobs.worker_state import WorkerState
from corosrv.predictions.health import NEXT, Health, HealthState, Slots, of_worker


@pytest.mark.parametrize("after", Health)
@pytest.mark.parametrize("before", Health)
def test_every_move_is_in_the_table_or_is_refused(before, after):
    health = HealthState(before)

    if after in NEXT[before] or after is before:
        health.move(after)
        assert health.state is after
    else:
        with pytest.raises(IllegalTransition):
            health.move(after)
        assert health.state is before


def test_failed_states_are_final_and_unhealthy_is_never_kept():
    assert not NEXT[Health.SETUP_FAILED]
    assert not NEXT[Health.DEFUNCT]
    assert not any(Health.UNHEALTHY in after for after in NEXT.values())


@pytest.mark.parametrize(
    ("slots", "health"),
    [
        (Slots(2, 0, 0), Health.READY),
        (Slots(2, 1, 0), Health.READY),
        (Slots(2, 2, 0), Health.BUSY),
        (Slots(2, 1, 1), Health.BUSY),
        (Slots(2, 0, 1), Health.READY),
        (Slots(2, 0, 2), Health.DEFUNCT),
    ],
)
def test_a_worker_that_is_set_up_is_as_its_slots_are(slots, health):
    assert of_worker(Health.READY, WorkerState.READY, slots) is health


@pytest.mark.parametrize("worker", [state for state in WorkerState if state is not WorkerState.READY])
def test_other_workers_need_no_look_at_slots(worker):
    expected = {
        WorkerState.STARTING: Health.STARTING,
        WorkerState.SETUP_FAILED: Health.SETUP_FAILED,
        WorkerState.DEFUNCT: Health.DEFUNCT,
        WorkerState.STOPPED: Health.DEFUNCT,
    }

    assert of_worker(Health.BUSY, worker, Slots()) is expected[worker]


def test_a_worker_that_was_stopped_in_its_setup_was_never_set_up():
    assert of_worker(Health.STARTING, WorkerState.STOPPED, Slots()) is Health.SETUP_FAILED
