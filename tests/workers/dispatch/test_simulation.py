"""Random schedules: every call is answered once, whatever workers, clients and operators do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corosrv.workers.dispatch.ledger import CallerAccount, Ledger
from tests.workers.dispatch.simulation import Crowds, Simulation


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


@pytest.mark.parametrize("seed", range(8))
def test_callers_whose_calls_always_wait_have_the_same_seconds_of_permits_by_their_weights(seed: int):
    crowds = Crowds(seed)

    crowds.run(300)

    assert sum(crowds.had.values()) > 0.95 * 300 * crowds.N_PERMITS


def _charge_calls(self: Ledger, account: CallerAccount, permits: float, now: float) -> None:
    """Charges each call alike, however long it took."""
    account.settled_at = now - 0.1
    STOP(self, account, permits, now)


def _forget_weights(self: Ledger, caller: str, tier: int = 0, weight: float = 1.0) -> CallerAccount:
    return JOIN(self, caller, tier)


def _charge_nothing(self: Ledger, account: CallerAccount, permits: float, now: float) -> None:
    account.settled_at = now
    STOP(self, account, permits, now)


STOP, JOIN = Ledger.stop, Ledger.join


@pytest.mark.parametrize(
    ("method", "bug"), [("stop", _charge_calls), ("stop", _charge_nothing), ("join", _forget_weights)]
)
def test_the_crowds_find_what_takes_shares_away(
    method: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Ledger, method, bug)
    crowds = Crowds(1)

    with pytest.raises(AssertionError, match="'a': "):
        crowds.run(300)
