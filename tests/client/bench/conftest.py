"""Servers under load, and the command that puts it on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.bench.handmade import HandMade, serving
from tests.serve.server import Server, Servers, servers

FAST = "synthetic:?tokens_per_s=200"


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("bench"), tmp_path_factory.mktemp("cache")) as started:
        yield started


@pytest.fixture(scope="session")
def fast(_started: Servers) -> Server:
    """A real corosrv on the synthetic model."""
    return _started.start("corosrv", "serve", "--port", "0", model=FAST, slots=32, ctx=16384)


@pytest.fixture(scope="session")
def other(_started: Servers) -> Server:
    """Another one, half as fast."""
    return _started.start("corosrv", "serve", "--port", "0", model="synthetic:?tokens_per_s=100", slots=32, ctx=16384)


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Server]:
    """One of a test's own, to be killed."""
    with servers(tmp_path, tmp_path) as started:
        yield started.start("corosrv", "serve", "--port", "0", model="synthetic:?tokens_per_s=20", slots=32)


@pytest.fixture
def handmade() -> Iterator[HandMade]:
    """Answers what a test tells it to."""
    with serving() as server:
        yield server
