"""The line of log about readers without a descriptor."""

import logging

from corosrv.models.engine.memory import DescriptorShortage


def test_a_line_comes_once_a_minute_and_counts_what_came_between(caplog):
    now = [100.0]
    shortage = DescriptorShortage(lambda: now[0])

    with caplog.at_level(logging.WARNING, "corosrv"):
        for _ in range(5):
            shortage.count()
        now[0] += 59.9
        shortage.count()
        assert len(caplog.records) == 1
        now[0] += 0.1
        shortage.count()

    first, second = (record.getMessage() for record in caplog.records)
    assert ": 1 new readers" in first
    assert ": 6 new readers" in second
    assert "open files is too low" in second
