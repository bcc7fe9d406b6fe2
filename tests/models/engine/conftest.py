"""An engine to leave in the middle of a job."""

import gevent
import pytest

from tests.support.engines import SLOW, opened


@pytest.fixture
def slow():
    """Says a word every 50 ms, in four slots."""
    gevent.get_hub()  # opens descriptors of its own, once
    with opened(model=SLOW) as engine:
        yield engine
