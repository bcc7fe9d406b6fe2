"""Answers of 500 in good form: what they say of an upstream, and what of the requests that got them."""

from __future__ import annotations

import pytest

from corosrv.contracts.jobs.infer import AnswerHead
from corosrv.fleet.upstreams.failures import COMPLAINT_DURATION, MAX_ERROR, N_COMPLAINTS, AnsweredError, Complaints
from tests.fleet.upstreams.behaviours import Gate, InTurn, ends, one
from tests.fleet.upstreams.pool_process import PoolProcess
from tests.support.scripted_upstream import ScriptedUpstream, crashes, echo, fails_with, scripted

JSON = (("Content-Type", "application/json; charset=utf-8"),)


def make_calls(pool: PoolProcess, *names: str) -> list[int | None]:
    """Makes calls one after the other, and returns the statuses of their answers."""
    statuses = []
    for name in names:
        pool.do("submit", names=[name])
        (result,) = pool.do("results", names=[name])
        assert result["ends"] == ["ok"]
        statuses.append(result["status"])
    return statuses


# The rules.


@pytest.mark.parametrize(
    ("status", "headers", "body", "is_error"),
    [
        (500, JSON, b'{"error": {"message": "no", "code": 500}}', True),
        (500, JSON, b'{"error": "no"}', True),
        (500, JSON, b'{"type": "error", "error": {"type": "api_error"}}', True),
        (500, JSON, b'{"object": "error", "message": "no"}', True),
        (507, JSON, b'{"error": "no"}', False),
        (500, JSON, b'{"error": null}', False),
        (500, JSON, b"[1]", False),
        (500, JSON, b'{"error": "n', False),
        (500, JSON, b"\xff", False),
        (500, JSON, b'{"error": "\xff"}', False),
        (500, JSON, b"", False),
        (500, JSON, b"[" * 5000, False),
        (500, JSON, b'{"error": 1}'.ljust(MAX_ERROR), True),
        (500, JSON, b'{"error": 1}'.ljust(MAX_ERROR + 1), False),
        (500, (("Content-Type", "text/plain"),), b'{"error": "no"}', False),
        (500, (), b'{"error": "no"}', False),
    ],
)
def test_an_error_in_good_form_is_a_500_of_json_with_an_error_in_it(status, headers, body: bytes, is_error: bool):
    error = AnsweredError(AnswerHead(status=status, headers=headers))

    for at in range(0, len(body), 1000):
        error.feed(body[at : at + 1000])

    assert error.is_well_formed is is_error


def test_one_request_that_is_repeated_is_never_a_fault():
    complaints = Complaints()

    assert not any(complaints.add(7, at) for at in range(0, 1000, 10))


def test_different_requests_are_a_fault_once_their_time_is_over():
    complaints = Complaints()

    assert not any(complaints.add(number, 100.0) for number in range(50))
    assert not complaints.add(50, 100.0 + COMPLAINT_DURATION - 0.1)
    assert complaints.add(51, 100.0 + COMPLAINT_DURATION)


def test_fewer_requests_are_no_fault_however_long_they_go_on():
    complaints = Complaints()

    assert not any(complaints.add(number % (N_COMPLAINTS - 1), 10.0 * number) for number in range(100))
    assert complaints.add(N_COMPLAINTS, 1000.0)


def test_no_more_requests_are_remembered_than_are_needed_to_tell():
    complaints = Complaints()

    for number in range(1000):
        complaints.add(number, 0.0)

    assert complaints.n_requests == N_COMPLAINTS


def test_another_answer_begins_the_count_anew():
    complaints = Complaints()
    for number in range(N_COMPLAINTS):
        complaints.add(number, 0.0)

    complaints.clear()

    assert not complaints.add(1, COMPLAINT_DURATION)
    assert not any(complaints.add(number, 2 * COMPLAINT_DURATION - 0.1) for number in range(N_COMPLAINTS))


# What a pool makes of them.


@pytest.fixture
def upstream(pool: PoolProcess):
    """One upstream in the pool."""
    with scripted() as started:
        pool.do("add", url=started.url)
        yield started


def test_requests_that_get_500_leave_the_upstream_to_others(pool: PoolProcess, upstream: ScriptedUpstream):
    upstream.behaviour = fails_with(500)

    assert make_calls(pool, *(f"bad{i}" for i in range(12))) == [500] * 12
    upstream.behaviour = echo

    assert one(pool)["state"] == "ready"
    assert make_calls(pool, "innocent") == [200]
    assert one(pool)["failed"] == {"answered_5xx": 12}


def test_answers_of_500_count_if_a_probe_right_after_them_fails(pool: PoolProcess):
    gate = Gate(fails_with(500))
    pool.do("close")
    pool.do("new", probes_each=60.0, probes_soonest=0.5)
    with scripted(gate) as upstream:
        id, _ = pool.do("add", url=upstream.url)
        pool.do("submit", names=["a", "b", "c", "d", "e"])
        gate.await_arrivals(5)

        upstream.health = 500
        gate.opening.set()

        pool.do("await_state", id=id, state="open")  # two probes at most, of three that would make it fall
        assert "it answered 500 to /health" in one(pool)["reason"]


def test_a_call_waits_no_longer_than_the_pause_that_a_failed_probe_begins(pool: PoolProcess):
    gate = Gate(fails_with(500))
    pool.do("close")
    pool.do("new", probes_each=60.0, probes_soonest=0.5)
    with scripted(gate) as upstream:
        id, _ = pool.do("add", url=upstream.url)
        pool.do("submit", names=["a", "b", "c", "d", "e"])
        gate.await_arrivals(5)
        upstream.health = 500
        gate.opening.set()
        pool.do("await_state", id=id, state="open")
        upstream.behaviour = echo

        pool.do("submit", names=["later"])

        # No probe comes meanwhile, and no other call: nothing but the end of the pause can give it its permit.
        assert ends(pool.do("results", names=["later"])) == [["ok"]]


def test_an_upstream_that_fails_every_request_though_it_says_that_it_is_well_is_found_out(pool: PoolProcess):
    pool.do("close")
    pool.do("new", complaints_for=0.0)
    with scripted(fails_with(500)) as upstream:
        pool.do("add", url=upstream.url)

        # Four are in doubt; then each is a fault, of which five open the breaker.
        make_calls(pool, *(f"bad{i}" for i in range(8)))
        assert one(pool)["state"] == "ready"
        make_calls(pool, "bad8")

        assert one(pool)["state"] == "open"
        assert "answered 500" in one(pool)["reason"]


def test_one_request_that_is_sent_again_and_again_opens_no_breaker(pool: PoolProcess):
    pool.do("close")
    pool.do("new", complaints_for=0.0)
    with scripted(fails_with(500)) as upstream:
        pool.do("add", url=upstream.url)

        make_calls(pool, *["bad"] * 12)

        assert one(pool)["state"] == "ready"


def test_other_answers_between_them_keep_the_breaker_closed(pool: PoolProcess):
    pool.do("close")
    pool.do("new", complaints_for=0.0)
    with scripted(InTurn(*[fails_with(500)] * 4, fails_with(400), *[fails_with(500)] * 8, echo)) as upstream:
        pool.do("add", url=upstream.url)

        statuses = make_calls(pool, *(f"c{i}" for i in range(14)))

        assert statuses == [500] * 4 + [400] + [500] * 8 + [200]
        assert one(pool)["state"] == "ready"


def test_a_trial_that_gets_500_in_good_form_makes_room_for_another(pool: PoolProcess):
    last = Gate()
    with scripted(InTurn(*[crashes] * 5, fails_with(500), last)) as upstream:
        pool.do("add", url=upstream.url)
        make_calls(pool, *(f"bad{i}" for i in range(5)))
        assert one(pool)["state"] == "open"

        pool.do("submit", names=["t1", "t2", "t3"])
        last.await_arrivals(1)
        pool.do("await_calls", waiting=1, running=1)
        last.opening.set()

        results = pool.do("results", names=["t1", "t2", "t3"])
        assert ends(results) == [["ok"]] * 3
        assert [result["status"] for result in results] == [500, 200, 200]
        assert one(pool)["state"] == "ready"
