"""A short form of the load of upstreams that fail in turn."""

from __future__ import annotations

import pytest

from tests.load.upstream_faults import CONCURRENCY, SETTINGS, Ended, Fault, commands, healthy_times, run
from tests.load.upstream_servers import load_front, upstream_servers


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_calls_end_once_each_while_their_upstreams_are_killed_and_stopped() -> None:
    with (
        upstream_servers(*commands("")) as servers,
        load_front(servers, CONCURRENCY, **SETTINGS) as front,
    ):
        result = run(servers, front, 2, quiet=0.5, turn=2.0)

    assert {fault.kind for fault in result.faults} == {"killed", "stopped"}
    assert result.tally.outcomes()["200 whole"] > 10
    assert result.healthy


def test_only_answers_of_an_upstream_that_was_well_meanwhile_are_healthy() -> None:
    fault = Fault(upstream=0, kind="killed", began=10, ended=15)
    times = {"before": (8, 9), "across": (9, 11), "inside": (12, 13), "after": (16, 18), "other": (12, 16)}
    calls = [Ended(name, began, ended, 200, True) for name, (began, ended) in times.items()]
    calls += [Ended("failed", 16, 17, 200, False), Ended("tried-twice", 16, 17, 200, True)]
    answered = dict.fromkeys(times, 0) | {"other": 1, "failed": 0}

    assert healthy_times(calls, [fault], answered, since=7) == [1, 2, 4]
    assert healthy_times(calls, [fault], answered, since=12) == [2, 4]
