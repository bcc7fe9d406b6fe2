"""A batch beside streams and over a kill, for a moment each."""

import pytest

from tests.load.batches import measure, quantile

pytestmark = pytest.mark.slow


def test_a_batch_leaves_streams_their_pace_and_loses_no_line_over_a_kill() -> None:
    figures = measure(n_lines=600, n_streams=16, seconds=3.0)

    assert (figures.status, len(figures.answers), set(figures.answers.values())) == ("completed", 600, {1})
    assert 0 < figures.n_before_kill < 600
    assert figures.n_beside > 0
    # The machine may do other things in one of the two moments.
    assert quantile(figures.beside, 0.99) < 1.3 * quantile(figures.quiet, 0.99) + 0.02
