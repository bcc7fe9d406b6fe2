"""Which predictions are known, and for how long."""

from datetime import datetime, timezone

import pytest

from corosrv.dialects.predictions.drain import Supervisor
from corosrv.dialects.predictions.prediction import Prediction

NOW = datetime.now(timezone.utc)


def running(supervisor: Supervisor, id: str) -> Prediction:
    prediction = Prediction(id, {}, {}, NOW)
    supervisor.add(prediction)
    return prediction


def test_a_running_prediction_is_found_as_one():
    supervisor = Supervisor(60)
    prediction = running(supervisor, "a")

    assert supervisor.find_running("a") is prediction
    assert supervisor.find("a", 0) is prediction
    assert supervisor.find_finished("a", 0) is None


def test_an_id_is_taken_once():
    supervisor = Supervisor(60)
    prediction = running(supervisor, "a")
    with pytest.raises(ValueError, match="taken"):
        running(supervisor, "a")
    supervisor.finish(prediction, now=0)

    with pytest.raises(ValueError, match="taken"):
        running(supervisor, "a")


def test_a_finished_prediction_is_remembered_for_its_time():
    supervisor = Supervisor(60)
    prediction = running(supervisor, "a")

    supervisor.finish(prediction, now=100)

    assert supervisor.find_running("a") is None
    assert supervisor.find("a", 159.9) is prediction
    assert supervisor.find("a", 160) is None
    running(supervisor, "a")


def test_only_the_latest_are_remembered():
    supervisor = Supervisor(60, limit=2)
    for number in range(4):
        supervisor.finish(running(supervisor, str(number)), now=number)

    assert [supervisor.find(str(number), 5) is not None for number in range(4)] == [False, False, True, True]


def test_no_more_is_remembered_than_there_is_room_for_and_the_latest_always():
    supervisor = Supervisor(60, max_bytes=100)
    for id, n_bytes in (("a", 60), ("b", 30), ("c", 20)):
        prediction = running(supervisor, id)
        prediction.n_bytes = n_bytes
        supervisor.finish(prediction, now=0)
    assert [supervisor.find(id, 5) is not None for id in "abc"] == [False, True, True]

    huge = running(supervisor, "huge")
    huge.n_bytes = 1000
    supervisor.finish(huge, now=0)
    assert [supervisor.find(id, 5) for id in ("b", "c", "huge")] == [None, None, huge]

    supervisor.finish(running(supervisor, "d"), now=0)
    assert [supervisor.find(id, 5) is not None for id in ("huge", "d")] == [False, True]
    supervisor.forget(60)
    assert supervisor.find("d", 60) is None


def test_nothing_is_remembered_without_a_time():
    supervisor = Supervisor(0)

    supervisor.finish(running(supervisor, "a"), now=5)

    assert supervisor.find("a", 5) is None


def test_forgetting_says_when_there_is_more_to_forget():
    supervisor = Supervisor(60)
    assert supervisor.forget(0) is None
    supervisor.finish(running(supervisor, "a"), now=0)
    supervisor.finish(running(supervisor, "b"), now=10)

    assert supervisor.forget(0) == 60
    assert supervisor.forget(60) == 70
    assert supervisor.forget(70) is None
