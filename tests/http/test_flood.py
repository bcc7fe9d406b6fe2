"""Few lines for many events."""

from __future__ import annotations

import logging

import gevent

from corosrv.http.flood import Flood


def test_the_first_is_told_at_once_and_the_others_together(caplog):
    gevent.get_hub()
    flood = Flood(logging.getLogger("corosrv.test"), "it happened %d times")
    for _ in range(500):
        flood.count()
    assert [record.getMessage() for record in caplog.records] == ["it happened 1 times"]

    with gevent.Timeout(5):
        while len(caplog.records) < 2:
            gevent.sleep(0.05)

    assert caplog.records[1].getMessage() == "it happened 499 times"
