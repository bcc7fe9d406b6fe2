"""The account of a rollout: every prompt ends once."""

import pytest

from corosrv.base.errors import IllegalTransition
from corosrv.client.groups import GroupState, LostGroup, RolloutLedger

ENDS = [GroupState.COMPLETE, GroupState.PARTIAL, GroupState.LOST]


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_no_prompt_ends_twice(first, second):
    ledger = RolloutLedger()
    index = ledger.submit("hi")
    ledger.end(index, first)

    with pytest.raises(IllegalTransition):
        ledger.end(index, second)

    assert ledger.report().n_submitted == 1


def test_a_prompt_cannot_go_back_to_running():
    ledger = RolloutLedger()

    with pytest.raises(IllegalTransition):
        ledger.end(ledger.submit("hi"), GroupState.RUNNING)


def test_a_report_counts_each_prompt_once():
    ledger = RolloutLedger()
    for prompt, state in (("a", ENDS[0]), ("b", ENDS[1]), ("c", ENDS[2]), ("d", None)):
        index = ledger.submit(prompt)
        if state is not None:
            ledger.end(index, state, "why")
    ledger.count_retry("502")

    report = ledger.report()

    assert (report.n_complete, report.n_partial, report.n_lost, report.n_running) == (1, 1, 1, 1)
    assert report.lost == (LostGroup(2, "c", "why"),)
    assert (report.n_submitted, report.n_retries) == (4, 1)
    assert "1 times why" in str(report)
