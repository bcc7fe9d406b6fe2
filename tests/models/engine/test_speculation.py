"""Guesses of next tokens with a real model: answers come in fewer steps, and are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from corosrv.base.errors import PromptTooLong
from corosrv.contracts.jobs import Chunk, Finish, Job, Sampling, ThoughtBudget
from corosrv.models.engine import Engine
from tests.support.engines import job, opened, packaged_model, read_all, text_of

pytestmark = pytest.mark.model

CODE = """def area(width, height):
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
"""
EDIT = f"Code:\n{CODE}\nThe same code with the name `height` instead of `width`:\n"
DRAWN = Sampling(temperature=0.7, seed=7)
SETTINGS = dict(slots=4, ctx=512, deterministic=True)


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with opened(model=packaged_model(), **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def guessing() -> Iterator[Engine]:
    with opened(model=packaged_model(), speculation=16, **SETTINGS) as engine:
        yield engine


def told(chunks: list[Chunk]) -> list[Any]:
    """Returns everything that a client sees of the answers but times and counts of guesses."""
    indexes = sorted({chunk.index for chunk in chunks})
    return [
        (
            "".join(chunk.text for chunk in chunks if chunk.index == index),
            [token for chunk in chunks if chunk.index == index for token in chunk.tokens],
            [(chunk.finish, chunk.stopping_word) for chunk in chunks if chunk.index == index and chunk.finish],
            sum(chunk.n_tokens for chunk in chunks if chunk.index == index),
        )
        for index in indexes
    ]


JOBS = {
    "greedy": {"sampling": Sampling(temperature=0)},
    "drawn": {"sampling": DRAWN},
    "hot": {"sampling": Sampling(temperature=1.3, top_k=0, seed=3)},
    "penalties": {"sampling": Sampling(temperature=0.6, seed=4, repeat_penalty=1.1, presence_penalty=0.2)},
    "dry": {"sampling": Sampling(temperature=0.6, seed=5, dry_multiplier=0.6)},
    "mirostat": {"sampling": Sampling(temperature=0.8, seed=6, mirostat=2)},
    "xtc": {"sampling": Sampling(temperature=0.6, seed=7, xtc_probability=0.5)},
    "logprobs": {"sampling": Sampling(temperature=0.6, seed=8, n_probs=3)},
    "grammar": {"sampling": Sampling(temperature=0.6, seed=9, grammar='root ::= ("    " [a-z (),*]+ "\\n")+')},
    "thoughts": {"sampling": Sampling(temperature=0.6, seed=10, thoughts=ThoughtBudget(20, "</think>"))},
    "stop": {"sampling": DRAWN, "stop": ("depth)", "return area")},
    "three": {"sampling": DRAWN, "n": 3},
    "expected": {"sampling": Sampling(temperature=0), "prediction": CODE},
}


@pytest.mark.parametrize("name", JOBS)
def test_a_text_is_bit_for_bit_what_it_is_without_guesses(name: str, plain: Engine, guessing: Engine) -> None:
    asked: Job = job(EDIT + CODE[:20], **{"max_tokens": 40, **JOBS[name]})

    answers = read_all(guessing.submit(asked))

    assert told(answers) == told(read_all(plain.submit(asked)))


def test_guesses_are_made_and_some_come_true(guessing: Engine) -> None:
    for _ in range(20):  # no guess is made while a busy machine makes further rows look dear
        before = guessing.stats()
        (*_, last) = read_all(guessing.submit(job(EDIT, max_tokens=60)))
        after = guessing.stats()
        if 0 < last.accepted_tokens < last.drafted_tokens:
            break

    assert before is not None
    assert after is not None
    assert 0 < last.accepted_tokens < last.drafted_tokens
    assert after.draft_tokens - before.draft_tokens == last.drafted_tokens
    assert after.draft_accepted_tokens - before.draft_accepted_tokens == last.accepted_tokens
    assert after.steps - before.steps < 60


def test_what_is_expected_and_comes_takes_few_steps(plain: Engine, guessing: Engine) -> None:
    prompt = "Once upon a time, in a small village by the sea,"
    expected = text_of(read_all(plain.submit(job(prompt, max_tokens=50))))

    for _ in range(20):  # as above
        (*_, last) = read_all(guessing.submit(job(prompt, max_tokens=50, prediction=expected)))
        if last.accepted_tokens > 25:
            break

    assert last.finish is Finish.LENGTH
    assert last.accepted_tokens > 25


def test_a_text_that_is_too_long_for_any_answer_is_refused_by_name_and_ignored_by_who_does_not_guess(
    plain: Engine, guessing: Engine
) -> None:
    asked = job(max_tokens=2, prediction="word " * 600)

    with pytest.raises(PromptTooLong) as refused:
        guessing.submit(asked)

    assert refused.value.param == "prediction"
    assert read_all(plain.submit(asked))[-1].finish is Finish.LENGTH
