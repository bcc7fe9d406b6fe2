"""Fuzzing for a second or two each, and what it found before."""

from typing import Any

import pytest

from tests.fuzz.runner import Target, all_targets

N_EXAMPLES = 150
TARGETS = all_targets()
CORPUS = [(target, name, example) for target in TARGETS for name, example in target.corpus()]


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_nothing_made_up_fails(target: Target) -> None:
    target.run(N_EXAMPLES, seed_number=0)


@pytest.mark.parametrize(("target", "example"), [(target, example) for target, _, example in CORPUS],
                         ids=[f"{target.name}-{name}" for target, name, _ in CORPUS])  # fmt: skip
def test_what_once_failed_does_no_more(target: Target, example: Any) -> None:
    target.check(example)
