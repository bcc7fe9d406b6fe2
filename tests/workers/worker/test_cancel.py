"""Which prediction a cancel is meant for: the whole table, without a process."""

from __future__ import annotations

import threading

import pytest

from corosrv.workers.worker.child.cancel import Cancels, Interrupts
from corosrv.workers.worker.predictor import CancelationException


class Prediction:
    """One that counts what it hears."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.is_cancelled = False
        self.is_told = False
        self.n_heard = 0

    def on_cancel(self) -> None:
        self.n_heard += 1


def test_a_running_prediction_hears_it_once() -> None:
    cancels, prediction = Cancels(), Prediction("a")
    cancels.begin(0, prediction)

    cancels.cancel(0, "a")
    cancels.cancel(0, "a")

    assert prediction.n_heard == 1
    assert cancels.end(0)


def test_one_that_comes_is_cancelled_before_it_begins() -> None:
    cancels, prediction = Cancels(), Prediction("a")
    cancels.cancel(0, "a")

    cancels.begin(0, prediction)

    assert prediction.is_cancelled
    assert prediction.n_heard == 0
    assert cancels.end(0)


@pytest.mark.parametrize(("slot", "id"), [(1, "a"), (0, "b")])
def test_another_slot_or_id_is_not_meant(slot: int, id: str) -> None:
    cancels, prediction = Cancels(), Prediction("a")
    cancels.begin(0, prediction)

    cancels.cancel(slot, id)

    assert not cancels.end(0)


def test_one_that_has_ended_is_not_meant_nor_its_namesake() -> None:
    cancels = Cancels()
    cancels.begin(0, Prediction("a"))
    cancels.end(0)

    cancels.cancel(0, "a")

    cancels.begin(0, Prediction("a"))
    assert not cancels.end(0)


def test_a_namesake_that_waits_in_the_channel_is_meant() -> None:
    cancels = Cancels(has_mail=lambda slot: True)
    cancels.begin(0, Prediction("a"))
    cancels.end(0)

    cancels.cancel(0, "a")

    cancels.begin(0, Prediction("a"))
    assert cancels.end(0)


def test_one_that_never_came_is_forgotten_when_another_does() -> None:
    cancels = Cancels()
    cancels.cancel(0, "absent")
    cancels.begin(0, Prediction("b"))
    assert not cancels.end(0)

    cancels.begin(0, Prediction("absent"))

    assert not cancels.end(0)


def test_what_user_code_calls_of_ours_is_interrupted_at_its_end() -> None:
    interrupts, prediction, reached = Interrupts(), Prediction("a"), []

    def user_code() -> None:
        with interrupts:
            prediction.is_cancelled = True
            interrupts._on_signal(interrupts.SIGNAL, None)
            reached.append("the end")
        reached.append("too far")

    with pytest.raises(CancelationException):
        interrupts.call(prediction, user_code)
    assert reached == ["the end"]


def test_other_threads_of_user_code_are_not_interrupted() -> None:
    interrupts, prediction, reached = Interrupts(), Prediction("a"), []

    def work() -> None:
        with interrupts:
            pass
        reached.append("on")

    def user_code() -> None:
        prediction.is_cancelled = True
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(5)

    interrupts.call(prediction, user_code)

    assert reached == ["on"]


def test_a_cancelled_prediction_does_not_start() -> None:
    interrupts, prediction, reached = Interrupts(), Prediction("a"), []
    prediction.is_cancelled = True

    with pytest.raises(CancelationException):
        interrupts.call(prediction, reached.append, "started")
    assert reached == []
