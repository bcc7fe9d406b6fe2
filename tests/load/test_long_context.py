"""A short form of the load by one long prompt and many short ones."""

from pathlib import Path

import pytest

from tests.load.long_context import ANSWER, SHAPE, Load, run
from tests.support.random_model import write_random_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_prompt_as_long_as_all_slots_takes_their_memory_and_short_ones_follow_it(tmp_path: Path) -> None:
    load = Load(slots=8, context=512, tokens=4000, timeout=300)

    result = run(load, write_random_model(tmp_path / "random.gguf", SHAPE))

    assert (result.long.prompt_tokens, result.long.n_tokens) == (4000, ANSWER)
    assert [answer.n_tokens for answer in result.own] == [ANSWER] * 8
    assert [(answer.prompt_tokens, answer.n_tokens) for answer in result.later] == [(512 - ANSWER, ANSWER)] * 8
    assert result.ratio < 1.25
