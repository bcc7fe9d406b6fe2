"""When a request of a rollout is sent again."""

import pytest

from corosrv.client.run import MAX_PAUSE, AttemptFailed, RetryRule, failed_answer


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 409, 499, 501])
def test_what_another_try_does_not_mend_is_not_repeated(status):
    assert RetryRule(5).pause(failed_answer(status, "", ""), 1, 100.0, 0.5) is None


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_what_the_server_is_to_blame_for_is_repeated_after_pauses_that_grow(status):
    failure = failed_answer(status, "", "")

    pauses = [RetryRule(3).pause(failure, n, 100.0, 0.0) for n in (1, 2, 3, 4)]

    assert pauses == [0.05, 0.1, 0.2, None]


@pytest.mark.parametrize("status", [409, 429, 503])
def test_a_busy_server_says_when_to_come_back_and_costs_no_retry(status):
    failure = failed_answer(status, "2", "")

    assert failure.pause == 2.0
    assert RetryRule(0).pause(failure, 0, 100.0, 0.0) == 2.0
    assert RetryRule(0).pause(failure, 0, 100.0, 1.0) == 3.0


def test_a_pause_is_bounded_and_ends_before_the_answer_is_of_no_use():
    assert RetryRule().pause(failed_answer(503, "9999", ""), 0, 100.0, 0.0) == MAX_PAUSE
    assert RetryRule().pause(failed_answer(503, "5", ""), 0, 4.0, 0.0) is None


@pytest.mark.parametrize("header", ["", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "\u00b2"])
def test_a_retry_after_that_is_no_number_says_nothing(header):
    assert failed_answer(503, header, "").pause is None


def test_a_lost_connection_is_repeated():
    failure = AttemptFailed("the connection was lost", may_repeat=True)

    assert RetryRule(1).pause(failure, 1, 100.0, 1.0) == 0.1
    assert RetryRule(1).pause(failure, 2, 100.0, 1.0) is None
