"""Servers: one for each kind, kept for the session, and a way to start others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.server import Server, Servers, servers


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the verdict of libllama's probe is kept, so that it runs once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("kept"), cache) as started:
        yield started


@pytest.fixture
def start(tmp_path: Path, cache: Path) -> Iterator[Servers]:
    """Servers of this test's own."""
    with servers(tmp_path, cache) as started:
        yield started


@pytest.fixture(scope="session")
def server(_kept: Servers) -> Server:
    """The synthetic model, 50 tokens a second."""
    return _kept.start()


@pytest.fixture(scope="session")
def real(_kept: Servers) -> Server:
    """SmolLM2, in little memory, and on one thread: two that wait for each other crawl where others compute too."""
    return _kept.start(model="", ctx=1024, slots=8, threads=1)
