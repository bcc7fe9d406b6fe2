"""States, what a prediction shows, and who is told."""

from datetime import datetime, timedelta, timezone

import pytest

from corosrv.base.errors import IllegalTransition
from corosrv.dialects.predictions.prediction import LOGS_CUT, NEXT, Change, History, Prediction, Status

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
LATER = NOW + timedelta(seconds=1, microseconds=7)
TO: dict[Status, list[Status]] = {
    Status.STARTING: [],
    Status.PROCESSING: [Status.PROCESSING],
    Status.SUCCEEDED: [Status.PROCESSING, Status.SUCCEEDED],
    Status.FAILED: [Status.FAILED],
    Status.CANCELED: [Status.CANCELED],
}


def make(**options) -> Prediction:
    return Prediction("p", {"secret": "s"}, {"secret": "*"}, NOW, **options)


def go(prediction: Prediction, status: Status) -> None:
    if status is Status.PROCESSING:
        prediction.begin(NOW)
    else:
        prediction.end(status, LATER, "E: no" if status is Status.FAILED else None)


def at(status: Status) -> Prediction:
    prediction = make()
    for step in TO[status]:
        go(prediction, step)
    return prediction


@pytest.mark.parametrize("after", sorted(set(Status) - {Status.STARTING}))
@pytest.mark.parametrize("before", Status)
def test_every_move_is_in_the_table_or_changes_nothing(before, after):
    prediction = at(before)

    if after in NEXT[before]:
        go(prediction, after)
        assert prediction.status is after
    elif after is Status.PROCESSING or not prediction.is_finished:
        with pytest.raises(IllegalTransition):
            go(prediction, after)
        assert prediction.status is before
    else:
        assert prediction.end(after, LATER) is False
        assert prediction.status is before


def test_the_first_end_counts():
    prediction = at(Status.PROCESSING)

    assert prediction.end(Status.FAILED, LATER, "E: no", 1.5) is True
    assert prediction.end(Status.CANCELED, LATER) is False

    assert prediction.view() == {
        "id": "p",
        "status": "failed",
        "error": "E: no",
        "logs": "",
        "metrics": {"predict_time": 1.5},
        "created_at": "2026-01-02T03:04:05.000000Z",
        "started_at": "2026-01-02T03:04:05.000000Z",
        "completed_at": "2026-01-02T03:04:06.000007Z",
    }


def test_moments_are_shown_once_they_have_passed():
    assert set(make().view()) == {"id", "status", "logs", "metrics", "created_at"}
    assert set(at(Status.PROCESSING).view()) == {"id", "status", "logs", "metrics", "created_at", "started_at"}


def test_the_input_is_shown_where_it_is_wanted_and_without_secrets():
    assert make().view(with_input=True)["input"] == {"secret": "*"}
    assert "input" not in make().view()


@pytest.mark.parametrize(
    ("is_list", "outputs", "shown"),
    [
        (False, [None], None),
        (False, [[1]], [1]),
        (False, [3], 3),
        (True, [], []),
        (True, [3], [3]),
        (True, [3, 4], [3, 4]),
    ],
)
def test_one_value_is_no_list_and_members_of_a_list_are_one(is_list, outputs, shown):
    prediction = make()
    prediction.begin(NOW)
    for value in outputs:
        prediction.add_output(value)

    prediction.end(Status.SUCCEEDED, LATER, is_list=is_list)

    assert prediction.view()["output"] == shown


def test_the_first_member_of_a_list_is_a_list_while_it_runs():
    prediction = make(is_list=True)
    prediction.begin(NOW)
    assert "output" not in prediction.view()

    prediction.add_output(3)

    assert prediction.view()["output"] == [3]


def test_a_list_stays_one_when_the_worker_dies_and_cannot_say_so():
    prediction = make(is_list=True)
    prediction.begin(NOW)
    prediction.add_output(3)

    prediction.end(Status.FAILED, LATER, "the worker crashed")

    assert prediction.view()["output"] == [3]


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELED])
def test_what_was_brought_forth_outlives_a_bad_end(status):
    prediction = make()
    prediction.begin(NOW)
    prediction.add_log("stdout", "a\n")
    prediction.add_log("stderr", "b\n")
    prediction.add_output(1)
    prediction.add_metric("n", 2, "replace")

    prediction.end(status, LATER, predict_time=0.5, is_list=True)

    shown = prediction.view()
    assert (shown["logs"], shown["output"], shown["metrics"]) == ("a\nb\n", [1], {"n": 2, "predict_time": 0.5})


def test_logs_without_end_are_cut_with_a_word(monkeypatch):
    monkeypatch.setattr("corosrv.dialects.predictions.prediction.MAX_LOGS", 10)
    prediction = make(history=History(10))
    heard: list[Change] = []
    prediction.begin(NOW)
    prediction.listen(heard.append)

    for text in ("1234\n", "5678\n", "9", "more"):
        prediction.add_log("stdout", text)

    assert prediction.view()["logs"] == f"1234\n5678\n{LOGS_CUT}"
    assert "TRUNCATED" in LOGS_CUT
    assert heard == 3 * [Change.LOGS]


def test_the_end_of_a_failure_without_output_shows_none():
    assert "output" not in at(Status.FAILED).view()


def test_listeners_hear_each_change_in_order_until_the_end():
    prediction = make()
    heard: list[Change] = []
    prediction.listen(heard.append)

    prediction.begin(NOW)
    prediction.add_log("stdout", "a\n")
    prediction.add_output(1)
    prediction.end(Status.SUCCEEDED, LATER)
    prediction.end(Status.SUCCEEDED, LATER)

    assert heard == [Change.START, Change.LOGS, Change.OUTPUT, Change.COMPLETED]


def test_events_say_what_happened():
    prediction = make(history=History(100))
    cursor = prediction.history.cursor()
    prediction.begin(NOW)
    prediction.add_output("a")
    prediction.add_log("stdout", "x\n")
    prediction.add_metric("n.m", 1, "increment")
    prediction.add_output("b")
    prediction.end(Status.SUCCEEDED, LATER, is_list=True)

    events = cursor.take()

    assert [(event.number, event.name, event.data) for event in events] == [
        (1, "start", {"id": "p", "status": "processing"}),
        (2, "output", {"chunk": "a", "index": 0}),
        (3, "log", {"source": "stdout", "data": "x\n"}),
        (4, "metric", {"name": "n.m", "value": 1, "mode": "increment"}),
        (5, "output", {"chunk": "b", "index": 1}),
        (6, "completed", prediction.view()),
    ]
