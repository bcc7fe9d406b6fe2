"""What the tests of an application's worker share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.app_child import AppChildProcess

APPS = Path(__file__).parent.parent.parent.parent / "apps"


@pytest.fixture(scope="module")
def child() -> Iterator[AppChildProcess]:
    """A worker with handlers of every kind, which the tests of a module share."""
    with AppChildProcess("handlers:app", APPS) as child:
        child.start()
        yield child


@pytest.fixture
def own_child() -> Iterator[AppChildProcess]:
    """The same for one test, which may ruin it."""
    with AppChildProcess("handlers:app", APPS) as child:
        child.start()
        yield child
