"""What tests of predictions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.predictors import PredictorServer, serving_predictor
from tests.support.receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PredictorServer]:
    """A predictor that does as its input says, on one slot. Tests leave it idle."""
    folder = tmp_path_factory.mktemp("tasks")
    with serving_predictor(folder, "tasks.py:Predictor", webhook_interval=0.1, max_body=200_000) as server:
        yield server


@pytest.fixture(scope="session")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PredictorServer]:
    """A predictor whose outputs can be followed, on one slot. Tests leave it idle."""
    folder = tmp_path_factory.mktemp("streams")
    with serving_predictor(folder, "streams.py:Predictor", sse_ping_interval=0.2) as server:
        yield server
