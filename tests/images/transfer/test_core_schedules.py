"""Random schedules: the rules of transfers hold in whatever order things happen."""

from __future__ import annotations

import pytest

from tests.images.transfer.world import RandomRun


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_the_rules_hold_whatever_goes_wrong(first: int):
    for seed in range(first, first + 100):
        RandomRun(seed, has_faults=True).run()


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_without_faults_every_transfer_succeeds(first: int):
    for seed in range(first, first + 100):
        RandomRun(seed, has_faults=False).run(40)
