"""What probes say of an upstream."""

from __future__ import annotations

import math

import pytest

from corosrv.fleet.upstreams.failures import FAST_PROBE_INTERVAL, PROBE_INTERVAL, ProbeRecord


def noted(record: ProbeRecord, probes: str) -> list[bool]:
    """Notes a good probe for each `+` and a failed one for each `-`; returns what was said after each."""
    return [record.note("" if probe == "+" else "refused") for probe in probes]


def up() -> ProbeRecord:
    record = ProbeRecord()
    record.note("")
    return record


def fallen() -> ProbeRecord:
    record = up()
    noted(record, "---")
    return record


def test_the_first_good_probe_raises_a_new_upstream():
    record = ProbeRecord()

    assert not record.is_up
    assert noted(record, "--+") == [False, False, True]
    assert record.is_up
    assert record.reason == ""


def test_it_falls_after_three_failures_in_a_row():
    record = up()

    assert noted(record, "---") == [False, False, True]
    assert not record.is_up
    assert record.reason == "refused"


def test_a_good_probe_between_failures_begins_the_count_anew():
    record = up()

    noted(record, "--+--")

    assert record.is_up


def test_it_rises_after_two_good_probes_in_a_row():
    record = fallen()

    assert noted(record, "+-+") == [False, False, False]
    assert not record.is_up
    assert record.note("")
    assert record.is_up


def test_an_upstream_that_is_up_has_no_reason_why_not_once_it_answers_again():
    record = up()

    noted(record, "-+")

    assert record.reason == ""


def test_one_that_is_not_up_is_probed_more_often():
    assert ProbeRecord().interval == FAST_PROBE_INTERVAL
    assert up().interval == PROBE_INTERVAL
    assert fallen().interval == FAST_PROBE_INTERVAL


def test_one_whose_last_probe_failed_is_probed_more_often():
    record = up()

    noted(record, "-")
    assert record.interval == FAST_PROBE_INTERVAL
    noted(record, "+")

    assert record.interval == PROBE_INTERVAL


@pytest.mark.parametrize(
    ("probes", "since"),
    [
        # Of each second: "." was not answered in any way, "-" badly, "+" well.
        ("..", -math.inf),  # it is up still
        ("...", 1),
        (".....", 3),  # of the last three
        ("---", -math.inf),  # it is there, whatever it answers
        ("..-.", -math.inf),
        ("--...", 3),
        ("...+", -math.inf),
        ("...+..", -math.inf),
        ("...+...", 5),
    ],
)
def test_it_seems_to_be_gone_since_the_first_of_three_probes_that_nobody_answered(probes: str, since: float):
    record = up()

    for at, probe in enumerate(probes, 1):
        record.note("" if probe == "+" else "failed", at if probe == "." else None)

    assert record.silent_since == since
