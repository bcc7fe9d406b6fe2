"""Pauses between tries, with times that the test passes in."""

from __future__ import annotations

from corosrv.workers.dispatch.estimates import Backoff


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(1.0, 10.0)

    assert [backoff.fail(now) for now in range(6)] == [1, 2, 4, 8, 10, 10]


def test_a_try_that_went_well_for_long_starts_afresh():
    backoff = Backoff(1.0, 60.0, recovery=30.0)
    backoff.fail(0)
    backoff.fail(1)

    backoff.succeed(2)
    assert backoff.fail(31.9) == 4
    backoff.succeed(40)
    backoff.succeed(69)

    assert backoff.fail(70) == 1


def test_a_try_that_never_went_well_is_no_recovery():
    backoff = Backoff(1.0, 60.0, recovery=5.0)
    backoff.succeed(0)
    backoff.fail(10)

    assert backoff.fail(1000) == 2
