"""What predictors record."""

from typing import Any

import pytest

from corosrv.dialects.predictions.prediction import RecordedMetrics
from tests.support.processor_time import least_seconds

Records = list[tuple[str, Any, str]]


@pytest.mark.parametrize(
    ("records", "nested"),
    [
        ([("a", 1, "replace"), ("a", "x", "replace")], {"a": "x"}),
        ([("a", 1, "increment"), ("a", 2.5, "increment")], {"a": 3.5}),
        ([("a", 1, "append"), ("a", 2, "append")], {"a": [1, 2]}),
        ([("a", 1, "replace"), ("a", 2, "append")], {"a": [1, 2]}),
        ([("a", [1], "replace"), ("a", 2, "append")], {"a": [1, 2]}),
        (
            [("a.b.c", 1, "replace"), ("a.b.d", 2, "replace"), ("a.e", 3, "replace")],
            {"a": {"b": {"c": 1, "d": 2}, "e": 3}},
        ),
        ([("a", 1, "replace"), ("b", 2, "replace"), ("a", None, "replace")], {"b": 2}),
        ([("a.b", 1, "replace"), ("ab", 2, "replace"), ("a", None, "replace")], {"ab": 2}),
        ([("a", None, "replace")], {}),
        ([("a", {"x": 1}, "replace"), ("a", None, "replace"), ("a.b", 2, "replace")], {"a": {"b": 2}}),
    ],
)
def test_records_make_an_object(records: Records, nested: dict[str, Any]):
    metrics = RecordedMetrics()
    for record in records:
        metrics.record(*record)

    assert metrics.nested() == nested


def test_a_list_that_was_recorded_is_not_changed_by_what_is_appended():
    metrics, recorded = RecordedMetrics(), [1]
    metrics.record("a", recorded, "replace")

    metrics.record("a", 2, "append")

    assert recorded == [1]


def test_appending_to_a_long_list_costs_as_little_as_to_a_short_one():
    def append() -> None:
        metrics = RecordedMetrics()
        for number in range(50_000):
            metrics.record("a", number, "append")
        assert len(metrics.nested()["a"]) == 50_000

    assert least_seconds(append, 1) < 1
