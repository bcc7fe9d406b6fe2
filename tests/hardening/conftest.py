"""A server for each group of attacks, watched while they last and looked over when they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hardening.attacks import Attack, run
from tests.hardening.watch import Belongings, HealthWatch
from tests.serve.conftest import _kept, cache, real, server, start  # noqa: F401
from tests.serve.server import Server, Servers
from tests.serve.wire import Connection


@pytest.fixture(scope="module")
def attacked(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server for all tests of a file; what they used is back when they are over."""
    kept: Servers = request.getfixturevalue("_kept")
    attacked = kept.start()
    belongings = Belongings(attacked)
    yield attacked
    belongings.check_returned()
    attacked.stop()


@pytest.fixture
def watched(attacked: Server) -> Iterator[Server]:
    """The same, with its health asked for all the time."""
    with HealthWatch(attacked):
        yield attacked


@pytest.fixture
def bear(watched: Server) -> Callable[[Attack], None]:
    """Sends an attack; fails unless it is answered as it has to be."""

    def check(attack: Attack) -> None:
        outcome = run(attack, watched.port)
        assert (fault := outcome.fault(attack)) is None, fault

    return check


@pytest.fixture
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """To the real model, whose health and slots are looked at while and after the test runs."""
    model: Server = request.getfixturevalue("real")
    with HealthWatch(model), model.connect() as connection:
        yield connection
    model.wait_idle(within=10)
