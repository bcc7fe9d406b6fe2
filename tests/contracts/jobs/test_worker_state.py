import itertools

import pytest

from corosrv.base.errors import IllegalTransition
from corosrv.contracts.jobs.setup import NEXT, WorkerState, check_move

ALLOWED = {
    ("starting", "ready"),
    ("starting", "setup_failed"),
    ("starting", "stopped"),
    ("ready", "defunct"),
    ("ready", "stopped"),
    ("ready", "draining"),
    ("draining", "defunct"),
    ("draining", "stopped"),
}


@pytest.mark.parametrize(("now", "then"), list(itertools.product(WorkerState, repeat=2)))
def test_a_worker_moves_as_the_table_says_and_in_no_other_way(now: WorkerState, then: WorkerState) -> None:
    if (now.value, then.value) in ALLOWED:
        check_move(now, then)
    else:
        with pytest.raises(IllegalTransition):
            check_move(now, then)


def test_every_state_is_in_the_table() -> None:
    assert set(NEXT) == set(WorkerState)
