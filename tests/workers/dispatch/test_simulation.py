"""Random schedules: every call is answered once, whatever workers, clients and operators do."""

from __future__ import annotations

import pytest

from tests.workers.dispatch.simulation import Simulation


@pytest.mark.parametrize("seed", range(8))
def test_every_call_is_answered_once_whatever_happens(seed: int):
    simulation = Simulation(seed)

    simulation.run(2500)
    simulation.finish()

    # Every way to end has come about, or the run has shown nothing.
    ways = {
        "ok",
        "closed",
        "CallCancelled",
        "CallRefused",
        "DeadlinePassed",
        "HandlerFailed",
        "QueueFull",
        "WorkerLost",
    }
    assert ways <= simulation.outcomes.keys()
    assert simulation.outcomes["ok"] > 500
