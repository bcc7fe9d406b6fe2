"""The command that kills Redis and fronts under queued calls, with few calls."""

from tests.load.shared_queue import check_front, check_redis, kill_front, kill_redis

QUICK = {"renew": 0.3, "claim_ms": 5000, "hold_ms": 3000}


def test_no_call_that_waits_is_lost_when_redis_is_killed():
    check_redis(kill_redis(200, "everysec", renew=0.3))


def test_what_a_killed_front_ran_is_lost_and_nothing_else():
    check_front(kill_front(200, **QUICK))
