"""A short rollout of the load test."""

import pytest

from tests.load.rollout import run

pytestmark = pytest.mark.slow


def test_every_group_of_a_rollout_comes_once_and_whole():
    result = run(n_prompts=200, n=4, max_tokens=4, concurrency=32, model="synthetic:", slots=32)

    assert sorted(result.indices) == list(range(200))
    assert result.n_answers == 800
    assert (result.report.n_complete, result.report.n_lost) == (200, 0)
