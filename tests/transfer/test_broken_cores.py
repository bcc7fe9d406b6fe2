"""Cores with one rule broken: random schedules reject each of them."""

from __future__ import annotations

import pytest

from corosrv.transfer.core import TransferCore
from tests.transfer.broken_cores import BROKEN
from tests.transfer.world import RandomRun

N_SEEDS = 200


def is_rejected(core_class: type[TransferCore]) -> bool:
    """Returns whether some schedule ends otherwise than it must, in whatever way."""
    for seed in range(N_SEEDS):
        for has_faults in (True, False):
            try:
                RandomRun(seed, has_faults=has_faults, core_class=core_class).run()
            except Exception:
                return True
    return False


@pytest.mark.parametrize("core_class", BROKEN)
def test_a_broken_core_is_rejected(core_class: type[TransferCore]):
    assert is_rejected(core_class)


def test_there_are_at_least_fifteen_of_them():
    assert len(BROKEN) >= 15
