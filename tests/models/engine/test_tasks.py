"""Seeds and biases: what of a job makes its answers differ."""

import math

import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import Finish, Job, Sampling
from tests.support.engines import (
    answer,
    job,
    read_all,
    text_of,
)


def hot(seed: int | None) -> Sampling:
    """Every token is about as likely as every other."""
    return Sampling(temperature=100, seed=seed, top_k=0, top_p=1, min_p=0)


def test_a_seed_says_the_same_again(engine):
    sampled = job(sampling=hot(7))

    assert answer(engine, sampled) == answer(engine, sampled)


def test_other_seeds_say_other_things(engine):
    texts = {answer(engine, job(sampling=hot(seed))) for seed in range(8)}

    assert len(texts) > 1


def test_answers_for_seeds_in_a_row_have_no_draws_in_common(engine):
    texts = []
    for seed in (5, 6, 7):
        chunks = read_all(engine.submit(job(n=3, sampling=hot(seed))))
        texts += [text_of(chunks, index) for index in range(3)]

    assert len(set(texts)) == 9


def test_the_first_of_several_answers_is_the_only_one_for_the_same_seed(engine):
    chunks = read_all(engine.submit(job(n=3, sampling=hot(5))))

    assert text_of(chunks, 0) == answer(engine, job(sampling=hot(5)))


@pytest.mark.parametrize("seed", [None, 7, 2**32 - 1])
def test_answers_of_one_job_differ(engine, seed):
    chunks = read_all(engine.submit(job(n=4, sampling=hot(seed))))

    assert len({text_of(chunks, index) for index in range(4)}) > 1


def biased(*biases) -> Job:
    return job(sampling=Sampling(temperature=0, logit_bias=biases))


def test_a_bias_by_id_changes_what_is_said(engine):
    assert answer(engine, biased((ord("x"), 100.0))) == "x" * 8


def test_a_bias_by_text_is_for_all_its_tokens(engine):
    assert set(answer(engine, biased(("ab", 100.0)))) <= {"a", "b"}


def test_a_ban_is_kept(engine):
    alone = answer(engine, job())

    banned = answer(engine, biased(*((token, -math.inf) for token in range(256, 272))))

    assert banned != alone


def test_a_model_that_may_say_nothing_ends_its_own_job_only(engine):
    everything = biased(*((token, -math.inf) for token in range(engine.info.n_vocab)))

    last = read_all(engine.submit(everything))[-1]

    assert last.finish is Finish.ERROR
    assert "no token can be drawn" in last.text
    assert answer(engine, job())


@pytest.mark.parametrize("token", [-1, 273, 2**31])
def test_a_bias_for_an_unknown_token_is_refused(engine, token):
    with pytest.raises(errors.Refused, match=rf"logit_bias: {token}\b"):
        engine.submit(biased((token, 1.0)))
