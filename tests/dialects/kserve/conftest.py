"""What tests of the v2 protocol share."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.dialects.kserve.app import make_app
from tests.dialects.kserve.generator_worker import GeneratorWorker
from tests.dialects.kserve.models import make_worker


@pytest.fixture
def worker() -> GeneratorWorker:
    return make_worker()


@pytest.fixture
def client(worker: GeneratorWorker) -> FlaskClient:
    return make_app(worker).test_client()
