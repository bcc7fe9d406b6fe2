"""What all tests share: engines to submit to, `corosrv serve` that starts nothing, the order of files, own processes.

A look at what holds the hub is there as well.
"""

import gc
import importlib
import os
import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from corosrv.models.engine import Engine
from tests.support import hub_watch, own_process
from tests.support.engines import opened, packaged_model


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(own_process.plugin(config))
    if config.pluginmanager.hasplugin("hypothesispytest"):  # a loaded machine may take long for one example
        hypothesis = importlib.import_module("hypothesis")
        hypothesis.settings.register_profile("patient", deadline=None, derandomize=True)
        hypothesis.settings.load_profile("patient")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first: one that begins last keeps a processor busy while the others idle."""
    n_tests = Counter(item.path for item in items)
    n_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (-n_slow[item.path], -n_tests[item.path]))


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from what collecting has made: it would look at it in each of its full runs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _watched_requests() -> Iterator[None]:
    watch = hub_watch.watch_requests()
    yield
    watch.stop()


@pytest.fixture(autouse=True)
def _free_hub(request: pytest.FixtureRequest, _watched_requests: None) -> Iterator[None]:
    """Fails a test in which a request, or a worker of a server that tests started, held the hub for long.

    A worker says so at its next switch: what it did at the end of the test before may be told here.
    """
    yield
    found = hub_watch.findings()
    if found and request.node.get_closest_marker("holds_the_hub") is None:
        pytest.fail("\n".join(found))


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


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside, and none left behind: serve hands its options down through the environment."""
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if "COROSRV" not in name})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, bare_environment: None) -> list[dict[str, Any]]:
    """The options that `corosrv serve` would start gunicorn with; it starts nothing."""
    options: list[dict[str, Any]] = []
    monkeypatch.setattr("corosrv.gunicorn_app.run", lambda chosen, arguments: options.append(chosen))
    monkeypatch.setattr(resource, "setrlimit", lambda *arguments: None)
    return options
