"""A short form of the load with images."""

from __future__ import annotations

import pytest

from tests.load.images import Figures, Load, corosrv_command, measure, slow_projector

SHORT = Load(n_streams=2, image_size=112, n_layers=2, seconds=0.5, n_rounds=1, n_repeats=3, nice=0)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_streams_run_and_images_are_answered_beside_them() -> None:
    with slow_projector(SHORT) as mmproj:
        figures = measure("corosrv", corosrv_command(mmproj, SHORT), SHORT)

    assert min(map(len, (*figures.without, *figures.during))) > 0
    assert figures.answers
    assert figures.n_encoded == 1 + len(figures.answers)  # those that came again were not
    assert min(*figures.texts, *figures.repeats) > 0


def test_images_are_compared_with_the_windows_around_them() -> None:
    figures = Figures("some", without=[[0.1], [0.3], [0.5]], during=[[0.2], [0.8]])

    assert figures.ratio(0.99) == pytest.approx((0.2 / 0.2 + 0.8 / 0.4) / 2)
