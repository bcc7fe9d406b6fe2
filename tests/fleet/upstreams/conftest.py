"""A process with a pool, which the tests of a module share; each test has a pool of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.upstreams.pool_process import PoolProcess


@pytest.fixture(scope="module")
def pool_process() -> Iterator[PoolProcess]:
    process = PoolProcess()
    yield process
    process.close()


@pytest.fixture
def pool(pool_process: PoolProcess) -> Iterator[PoolProcess]:
    pool_process.do("new")
    yield pool_process
    pool_process.do("close")
    assert pool_process.do("leftovers") == {"greenlets": 0, "sockets": 0}
