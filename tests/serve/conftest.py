"""Servers: one for each kind, kept for the session, and a way to start others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import Server, Servers, servers
from tests.serve.wire import Connection
from tests.support.predictors import PredictorServer, serving_predictor
from tests.support.receiver import Receiver, receiving

StartPredictor = Callable[..., PredictorServer]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that keeps the verdict of libllama's probe, so that it runs once."""
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


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """To that server; of use for further requests when the test is over."""
    with server.connect() as connection:
        yield connection
        assert connection.ask("GET", "/health").status == 200, "the connection is of no more use"


@pytest.fixture(scope="session")
def real(_kept: Servers) -> Server:
    """SmolLM2, in little memory, and on one thread: two that wait for each other crawl where others compute too."""
    return _kept.start(model="", ctx=1024, slots=8, threads=1)


@pytest.fixture
def start_predictor(tmp_path: Path, cache: Path) -> Iterator[StartPredictor]:
    """Servers of this test's own, each with a predictor: a file of tests/predictors, or the text of one."""
    with ExitStack() as stack:

        def start(predictor: str, name: str = "Predictor", **options: Any) -> PredictorServer:
            file = predictor
            if "\n" in predictor:
                path = tmp_path / "predict.py"
                path.write_text(predictor)
                file = f"{path}:{name}"
            return stack.enter_context(serving_predictor(tmp_path, file, XDG_CACHE_HOME=cache, **options))

        yield start


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Of webhooks."""
    with receiving() as receiver:
        yield receiver
