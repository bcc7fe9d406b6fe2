"""What all tests share: engines to submit to."""

from collections.abc import Iterator

import pytest

from corosrv.engine import Engine
from tests.support.engines import opened, packaged_model


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Makes up its text as fast as it can, in four slots."""
    with opened() as engine:
        yield engine


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Engine]:
    """The real model, on one thread: two wait for each other where others compute too. For tests marked `model`."""
    with opened(model=packaged_model(), slots=16, ctx=512, queue=64, threads=1) as engine:
        yield engine
