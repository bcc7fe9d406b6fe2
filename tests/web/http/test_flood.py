"""Few lines for many events."""

from __future__ import annotations

import logging

import gevent

from corosrv.web.http.reply import Flood, line

LOGGER = "corosrv.test"


def lines(caplog):
    """Returns the lines of this file's logger: what other tests have left running logs as well."""
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_the_first_is_told_at_once_and_the_others_together(caplog):
    gevent.get_hub()
    flood = Flood(logging.getLogger(LOGGER), "it happened %d times")
    for _ in range(500):
        flood.count()
    assert lines(caplog) == ["it happened 1 times"]

    with gevent.Timeout(20):
        while len(lines(caplog)) < 2:
            gevent.sleep(0.05)

    assert lines(caplog)[1] == "it happened 499 times"


def test_the_first_tells_its_own_line_and_the_others_are_counted(caplog):
    gevent.get_hub()
    log = logging.getLogger(LOGGER)
    flood = Flood(log, "%d more")
    for number in range(500):
        flood.count(lambda number=number: log.warning("number %d", number))

    with gevent.Timeout(20):
        while len(lines(caplog)) < 2:
            gevent.sleep(0.05)

    assert lines(caplog) == ["number 0", "499 more"]


def test_what_clients_write_stays_within_its_line():
    assert line("/a\r\n2026-01-01 [1] [INFO] b\x1b[31m\u2028\u202e\udcff") == (
        "/a\\r\\n2026-01-01 [1] [INFO] b\\x1b[31m\\u2028\\u202e\\udcff"
    )
    assert line("x" * 9000) == "x" * 200 + "..."
