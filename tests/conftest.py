"""What all tests share: engines to submit to, and the order of files."""

from collections import Counter
from collections.abc import Iterator

import pytest

from corosrv.engine import Engine
from tests.support.engines import opened, packaged_model


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first: one that begins last keeps a processor busy while the others idle."""
    n_tests = Counter(item.path for item in items)
    n_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (-n_slow[item.path], -n_tests[item.path]))


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
