"""Predictions that go wrong at random, over real HTTP; `python -m tests.load.predictor_faults` runs many more."""

from __future__ import annotations

from pathlib import Path

from tests.load import predictor_faults


def test_every_prediction_ends_once_and_nothing_is_left(tmp_path: Path):
    tally = predictor_faults.run(tmp_path, count=120)

    assert set(tally.ends) == {"succeeded", "failed", "canceled"}
    assert tally.refusals[503] > 0  # workers died, and came back
