"""What tests of the v2 protocol share."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.kserve.app import make_app
from tests.kserve.function_worker import FunctionWorker
from tests.kserve.models import make_worker


@pytest.fixture
def worker() -> FunctionWorker:
    return make_worker()


@pytest.fixture
def client(worker: FunctionWorker) -> FlaskClient:
    return make_app(worker).test_client()
