"""What all tests of workers share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import gevent
import pytest

from tests.support.descriptors import n_descriptors


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves a descriptor open."""
    gevent.get_hub().threadpool.apply(int)  # its descriptors come with the first use
    before = len(os.listdir("/proc/self/fd"))
    yield
    if len(os.listdir("/proc/self/fd")) != before:  # somebody's garbage, maybe, which takes its time to collect
        gevent.get_hub().threadpool.join()
        assert n_descriptors() == before
