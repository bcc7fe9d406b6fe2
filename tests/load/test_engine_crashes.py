"""Short forms of the load on an engine that is killed and stopped, and of deaths at each token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.engine_crashes import hold_load
from tests.load.engine_kills import sweeping


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_streams_are_whole_and_have_one_end_each_while_their_engine_is_killed(tmp_path: Path) -> None:
    result = hold_load(tmp_path, seconds=10, turn=2.0, seed=7)  # the first faults are kills

    assert result.tally.counts["whole"] > 20
    assert result.tally.faults["engine killed"]
    assert result.n_engines > 1


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
def test_answers_of_several_kinds_outlive_their_engines(tmp_path: Path) -> None:
    kinds = ("seeded, temperature 0.9", "Anthropic's tool call", "in one piece, n=2")
    with sweeping(tmp_path, kinds=kinds) as sweep:
        sweep.kill_at([3, 10, 17, 24, 31], "Anthropic's tool call")

        assert not [difference for row in sweep.rows.values() for difference in row.differences]
        assert sum(row.n_kills for row in sweep.rows.values()) >= 6
