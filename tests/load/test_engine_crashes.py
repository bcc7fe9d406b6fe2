"""A short form of the load on an engine that is killed and stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.engine_crashes import hold_load


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_streams_are_whole_and_have_one_end_each_while_their_engine_is_killed(tmp_path: Path) -> None:
    result = hold_load(tmp_path, seconds=10, turn=2.0, seed=7)  # the first faults are kills

    assert result.tally.counts["whole"] > 20
    assert result.tally.faults["engine killed"]
    assert result.n_engines > 1
