"""The end of what sends scripts to Redis: nobody may wait for an answer that cannot come."""

from __future__ import annotations

import gevent
import pytest

from corosrv.base.errors import RedisUnavailable
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.script_runner import ScriptRunner


def test_a_script_that_comes_after_the_close_fails_at_once():
    runner = ScriptRunner(RedisClient("redis://127.0.0.1:1/0"))
    runner.close()

    with gevent.Timeout(5), pytest.raises(RedisUnavailable, match="shutting down"):
        runner.run("return 1", (), ())


def test_a_script_that_was_not_sent_fails_with_the_close():
    runner = ScriptRunner(RedisClient("redis://127.0.0.1:1/0"))
    waiting = gevent.spawn(runner.run, "return 1", (), ())
    gevent.idle()

    runner.close()

    with gevent.Timeout(5), pytest.raises(RedisUnavailable, match="shutting down"):
        waiting.get()
