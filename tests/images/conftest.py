"""Ends what the tests of images share."""

import pytest

from tests.images.decoders import DECODERS


@pytest.fixture(scope="session", autouse=True)
def decoders():
    yield DECODERS
    DECODERS.close()
