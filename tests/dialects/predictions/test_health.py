"""The states of the service, and how they are read from a worker."""

import pytest

from corosrv.base.errors import IllegalTransition
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.dialects.predictions.health import NEXT, HealthState, PredictorHealth, SlotCounts, of_worker


@pytest.mark.parametrize("after", PredictorHealth)
@pytest.mark.parametrize("before", PredictorHealth)
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
    assert not NEXT[PredictorHealth.SETUP_FAILED]
    assert not NEXT[PredictorHealth.DEFUNCT]
    assert not any(PredictorHealth.UNHEALTHY in after for after in NEXT.values())


@pytest.mark.parametrize(
    ("slots", "health"),
    [
        (SlotCounts(2, 0, 0), PredictorHealth.READY),
        (SlotCounts(2, 1, 0), PredictorHealth.READY),
        (SlotCounts(2, 2, 0), PredictorHealth.BUSY),
        (SlotCounts(2, 1, 1), PredictorHealth.BUSY),
        (SlotCounts(2, 0, 1), PredictorHealth.READY),
        (SlotCounts(2, 0, 2), PredictorHealth.DEFUNCT),
    ],
)
def test_a_worker_that_is_set_up_is_as_its_slots_are(slots, health):
    assert of_worker(PredictorHealth.READY, WorkerState.READY, slots) is health


@pytest.mark.parametrize("worker", [state for state in WorkerState if state is not WorkerState.READY])
def test_other_workers_need_no_look_at_slots(worker):
    expected = {
        WorkerState.STARTING: PredictorHealth.STARTING,
        WorkerState.SETUP_FAILED: PredictorHealth.SETUP_FAILED,
        WorkerState.DRAINING: PredictorHealth.DEFUNCT,
        WorkerState.DEFUNCT: PredictorHealth.DEFUNCT,
        WorkerState.STOPPED: PredictorHealth.DEFUNCT,
    }

    assert of_worker(PredictorHealth.BUSY, worker, SlotCounts()) is expected[worker]


def test_a_worker_that_was_stopped_in_its_setup_was_never_set_up():
    assert of_worker(PredictorHealth.STARTING, WorkerState.STOPPED, SlotCounts()) is PredictorHealth.SETUP_FAILED
