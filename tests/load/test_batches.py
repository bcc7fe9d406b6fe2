"""A batch beside streams and over a kill, for a moment each."""

import pytest

from tests.load.batches import measure, quantile

pytestmark = pytest.mark.slow
BUSY = 0.03  # seconds between two tokens of a hundredth each, beside nothing: the machine has other things to do


def test_a_batch_leaves_streams_their_pace_and_loses_no_line_over_a_kill() -> None:
    for _ in range(3):
        figures = measure(n_lines=600, n_streams=16, seconds=3.0)

        assert (figures.status, len(figures.answers), set(figures.answers.values())) == ("completed", 600, {1})
        assert 0 < figures.n_before_kill < 600
        assert figures.n_beside > 0
        quiet, beside = (quantile(gaps, 0.99) for gaps in (figures.quiet, figures.beside))
        # A busy machine tells nothing: what computes for the batch there takes its time from the streams.
        if beside < 1.3 * quiet + 0.02 or quiet > BUSY:
            return
    # The machine may have done other things in the second of the two moments, but not three times.
    pytest.fail(f"99 of 100 gaps were below {quiet:.3f} s, and beside a batch below {beside:.3f} s")
