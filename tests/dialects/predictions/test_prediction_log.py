"""The lines of log that tell of ended predictions."""

import json
import logging
from collections.abc import Iterator

import pytest

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.settings import PredictionSettings
from corosrv.dialects.predictions.parse import PredictionCall
from corosrv.dialects.predictions.service import PredictionService
from tests.support.predicting import HandWorker, settle

LOGGER = "corosrv.jobs"


def scale(x: int = 1) -> int:
    return x * 2


@pytest.fixture
def worker() -> HandWorker:
    return HandWorker(scale)


@pytest.fixture(params=[False, True], ids=["text", "json"])
def as_json(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def service(worker: HandWorker, as_json: bool) -> Iterator[PredictionService]:
    service = PredictionService(worker, PredictionSettings(predictor="scale.py:scale"), logs_json=as_json)
    worker.go(WorkerState.READY)
    yield service
    service.shutdown(0)


def begin(service: PredictionService) -> None:
    service.admit(PredictionCall(input={"x": 1}, id="p-1"))
    settle()


def test_a_prediction_that_succeeded_has_one_line_at_level_debug(service, worker, as_json, caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    begin(service)

    worker.running[0].output(6)
    worker.running[0].done()
    settle()

    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    if as_json:
        line = json.loads(record.getMessage())
        assert line.pop("seconds") >= 0
        assert line == {
            "event": "prediction_ended",
            "id": "p-1",
            "predictor": "scale.py:scale",
            "outcome": "succeeded",
            "n_outputs": 1,
            "predict_ms": 250.0,
        }
    else:
        assert record.getMessage().startswith(
            "prediction p-1 of scale.py:scale ended: succeeded, 1 outputs, 250 ms of predicting, "
        )


def test_a_prediction_that_failed_says_of_what_kind_and_not_with_what_words(service, worker, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    begin(service)

    worker.running[0].failed("ValueError: hunter2 is no number")
    settle()

    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "ValueError" in record.getMessage()
    assert "hunter2" not in record.getMessage()


def test_a_prediction_that_was_canceled_is_told_at_level_info(service, worker, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    begin(service)

    service.cancel("p-1")
    worker.running[0].cancelled()
    settle()

    (record,) = caplog.records
    assert "canceled" in record.getMessage()
