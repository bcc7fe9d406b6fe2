"""Chunks tell of tokens, of prompts, and of why an answer ended."""

import math
from dataclasses import replace

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import SAMPLERS, Candidate, Chunk, Finish, Sampling, TokenInfo
from corosrv.models.engine import Engine
from tests.support.engines import GREEDY, answer, job, opened, read_all, text_of

TOLD = replace(GREEDY, n_probs=3)


def tokens_of(chunks: list[Chunk], index: int = 0) -> list[TokenInfo]:
    return [token for chunk in chunks if chunk.index == index for token in chunk.tokens]


def prompt_of(chunks: list[Chunk]) -> list[TokenInfo]:
    return [token for chunk in chunks for token in chunk.prompt_info]


def bytes_of(tokens: list[TokenInfo]) -> bytes:
    return b"".join(token.piece for token in tokens)


def test_each_token_comes_with_its_probability_and_the_likeliest(engine: Engine) -> None:
    chunks = read_all(engine.submit(job(sampling=TOLD)))

    tokens = tokens_of(chunks)
    assert len(tokens) == 8
    assert bytes_of(tokens).decode() == text_of(chunks)
    for token in tokens:
        assert token.top[0] == Candidate(token.id, token.piece, token.logprob)
        assert len(token.top) == 3


def test_nothing_is_told_that_was_not_asked_for(engine: Engine) -> None:
    assert tokens_of(read_all(engine.submit(job()))) == []


def test_the_end_token_has_an_entry_without_a_piece() -> None:
    with opened(model="synthetic:?tokens_per_s=0&length=3") as engine:
        chunks = read_all(engine.submit(job(sampling=replace(GREEDY, n_probs=0))))

    tokens = tokens_of(chunks)
    assert chunks[-1].finish is Finish.STOP
    assert (len(tokens), tokens[-1].piece, tokens[-1].top) == (4, b"", ())
    assert tokens[-1] == chunks[-1].tokens[-1]


def test_a_stop_string_cuts_its_tokens_with_the_text(engine: Engine) -> None:
    whole = answer(engine, job(max_tokens=20))
    stop = whole[12:16]
    chunks = read_all(engine.submit(job(sampling=TOLD, max_tokens=20, stop=(stop,))))

    assert text_of(chunks) == whole[: whole.index(stop)]
    assert bytes_of(tokens_of(chunks)).decode() == text_of(chunks)
    assert chunks[-1].stopping_word == stop


def test_every_prompt_token_is_scored_but_the_first(engine: Engine) -> None:
    prompt = "x" * 300
    chunks = read_all(engine.submit(job(prompt, sampling=TOLD, max_tokens=0, scores_prompt=True)))

    scored = prompt_of(chunks)
    assert bytes_of(scored).decode() == prompt
    assert (scored[0].logprob, scored[0].top) == (None, ())
    assert all(token.logprob is not None and math.isfinite(token.logprob) for token in scored[1:])
    assert (chunks[-1].finish, chunks[-1].n_tokens) == (Finish.LENGTH, 0)


def test_a_job_ends_when_its_time_is_over() -> None:
    with opened(model="synthetic:?tokens_per_s=100") as engine:
        last = read_all(engine.submit(job(max_tokens=None, max_ms=60)))[-1]

    assert last.finish is Finish.LENGTH
    assert 60 <= last.decode_ms < 2000


def test_an_error_has_a_code_and_an_answer_a_slot(engine: Engine) -> None:
    banned = replace(GREEDY, logit_bias=tuple((token, -math.inf) for token in range(273)))
    failed = read_all(engine.submit(job(sampling=banned)))[-1]

    assert (failed.finish, failed.code) == (Finish.ERROR, "all_tokens_banned")
    assert 0 <= read_all(engine.submit(job()))[-1].slot < 4


def test_an_engine_that_ends_says_so_in_its_code() -> None:
    with opened(model="synthetic:?tokens_per_s=20") as engine:
        reader = engine.submit(job(max_tokens=None))
        reader.take(20)
        engine.drain()
        last = read_all(reader)[-1]

    assert (last.finish, last.code) == (Finish.ERROR, "server_shutting_down")


OTHERS = {
    "top_n_sigma": 1.0, "xtc_probability": 1.0, "dynatemp_range": 0.5, "dry_multiplier": 0.8, "mirostat": 1,
    "adaptive_target": 0.3, "min_keep": 3, "samplers": ("temperature", "top_k"), "repeat_last_n": 250_000_000,
    "dry_penalty_last_n": 120_000_000,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_every_sampler_draws_the_same_for_the_same_seed(engine: Engine, name: str) -> None:
    sampling = replace(Sampling(seed=4, dry_multiplier=0.1, repeat_penalty=1.1), **{name: OTHERS[name]})

    assert answer(engine, job(sampling=sampling)) == answer(engine, job(sampling=sampling)) != ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"xtc_probability": 2.0}, "xtc_probability"),
        ({"mirostat": 3}, "mirostat"),
        ({"samplers": ("top_k", "top_k")}, "twice"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers"),
        ({"grammar_triggers": ("x",)}, "need a grammar"),
        ({"n_probs": -2}, "n_probs"),
    ],
)
def test_a_sampler_out_of_range_is_refused_by_name(engine: Engine, changes: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=words):
        engine.submit(job(sampling=replace(GREEDY, **changes)))


def test_all_samplers_are_known_to_the_native_core(engine: Engine) -> None:
    assert answer(engine, job(sampling=replace(GREEDY, samplers=SAMPLERS[::-1]))) != ""


@pytest.mark.model
def test_a_prompt_is_scored_as_its_tokens_would_be_drawn(smollm2: Engine) -> None:
    drawn = read_all(smollm2.submit(job("The sea is", sampling=TOLD, max_tokens=12)))
    ids = [token.id for token in tokens_of(drawn)]
    prompt = "The sea is" + text_of(drawn)
    scored = prompt_of(read_all(smollm2.submit(job(prompt, sampling=TOLD, max_tokens=0, scores_prompt=True))))

    assert [token.id for token in scored[-12:]] == ids
    for expected, found in zip(tokens_of(drawn), scored[-12:], strict=True):
        assert found.logprob == pytest.approx(expected.logprob, abs=0.1)
    assert sum(math.exp(token.logprob or 0) for token in scored[1].top) < 1


@pytest.mark.model
def test_a_grammar_begins_with_its_trigger(smollm2: Engine) -> None:
    late = replace(GREEDY, grammar='root ::= "Paris" [!]', grammar_triggers=("Par",))

    assert answer(smollm2, job("The capital of France is", sampling=late, max_tokens=20)) == " Paris!"
