"""Cores with one rule broken: random schedules reject each of them by that rule, with no other being checked."""

from __future__ import annotations

import pytest

from corosrv.base.errors import CorosrvError
from tests.images.transfer.broken_cores import BROKEN
from tests.images.transfer.rules import RULES, RuleBroken
from tests.images.transfer.world import RandomRun

N_SEEDS = 200
CrashesOfBrokenCores = (CorosrvError, AssertionError, AttributeError, KeyError, IndexError, ValueError)


def is_rejected(part_class: type, rule: str) -> bool:
    """Returns whether some schedule breaks the rule. Whatever else goes wrong ends a schedule, and proves nothing."""
    for seed in range(N_SEEDS):
        for has_faults in (True, False):
            run = RandomRun(seed, has_faults=has_faults, part_class=part_class, rules=frozenset({rule}))
            try:
                run.run()
            except RuleBroken:
                return True
            except CrashesOfBrokenCores:
                continue
    return False


@pytest.mark.parametrize(("part_class", "rule"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_core_is_rejected_by_its_own_rule(part_class: type, rule: str):
    assert is_rejected(part_class, rule)


def test_every_rule_rejects_a_core():
    assert {rule for _, rule in BROKEN} == RULES
