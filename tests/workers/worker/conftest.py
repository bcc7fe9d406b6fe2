"""What all tests of workers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from tests.support.descriptors import n_descriptors
from tests.support.worker_child import ChildProcess

PREDICTORS = Path(__file__).parent.parent.parent / "predictors"


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves a descriptor open. For files marked `own_process`."""
    gevent.get_hub().threadpool.apply(int)  # its descriptors come with the first use
    before = n_descriptors()
    yield
    gevent.get_hub().threadpool.join()
    assert n_descriptors() <= before


@pytest.fixture(scope="module")
def sync_child() -> Iterator[ChildProcess]:
    with ChildProcess(f"{PREDICTORS / 'sync_basics.py'}:Predictor") as child:
        child.set_up()
        yield child


@pytest.fixture(scope="module")
def async_child() -> Iterator[ChildProcess]:
    with ChildProcess(f"{PREDICTORS / 'async_basics.py'}:Predictor", slots=8) as child:
        child.set_up()
        yield child
