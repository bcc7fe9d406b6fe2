"""A short form of the load of handlers that go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.handler_faults import run
from tests.serve.server import servers


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_calls_that_go_wrong_end_once_each_and_leave_nothing(tmp_path: Path) -> None:
    with servers(tmp_path, tmp_path) as started:
        tally, _ = run(tmp_path, started, 600)

    assert tally.answers["echo", 200] > 10
