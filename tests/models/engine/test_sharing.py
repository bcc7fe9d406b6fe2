"""Prefixes that prompts share, on the real model: what is reported, and what it changes in the text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from corosrv.contracts.jobs import Job, Prompt, Sampling, Text, Tokens
from corosrv.models.engine.engine import Engine
from tests.support.architectures import write_gemma2
from tests.support.engines import opened, packaged_model

pytestmark = pytest.mark.model

GREEDY = Sampling(temperature=0)
SYSTEM = "The ship left the harbour at dawn, and nobody on board knew where the captain meant to go. " * 5
QUESTIONS = [f"On day {day} the weather turned, and" for day in range(6)]
LONG = "A list of ports and the goods they trade: " * 30


@pytest.fixture(scope="module")
def deterministic():
    with opened(model=packaged_model(), slots=8, ctx=1024, threads=1, deterministic=True) as engine:
        yield engine


def answer(engine: Engine, prompt: str, *, sampling: Sampling = GREEDY, tokens: int = 12, share: bool = True):
    """The text, and how many tokens of the prompt were known already."""
    with engine.submit(Job((Text(prompt),), max_tokens=tokens, sampling=sampling, share_prefix=share)) as reader:
        chunks = list(reader)
    return "".join(chunk.text for chunk in chunks), chunks[-1].cached_tokens


def answers(engine: Engine, prompts: list[str], **chosen) -> list[tuple[str, int]]:
    """All at once."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(lambda prompt: answer(engine, prompt, **chosen), prompts))


def test_a_prompt_that_begins_like_an_earlier_one_reads_the_rest_only(smollm2):
    shared = smollm2.vocabulary(None).count(Text(SYSTEM))
    _, cold = answer(smollm2, SYSTEM + "First:")
    _, warm = answer(smollm2, SYSTEM + "Second:")

    assert cold == 0
    assert shared - 1 <= warm <= shared


def test_a_short_prompt_that_comes_again_is_known_too(smollm2):
    prompt = "Nine ports, two ships."
    n_tokens = len(smollm2.vocabulary(None).encode(Text(prompt)))

    assert n_tokens < 16
    assert [answer(smollm2, prompt)[1] for _ in range(2)] == [0, n_tokens - 1]


def test_with_a_sliding_window_a_prompt_begins_with_what_was_computed_twice(tmp_path):
    """A copy has no more than the next token sees, so that nothing can be cut off from it."""

    def said(engine: Engine, prompt: Prompt, **chosen):
        sampling = replace(GREEDY, n_probs=1)
        with engine.submit(Job((prompt,), max_tokens=8, sampling=sampling, **chosen)) as reader:
            chunks = list(reader)
        return [token for chunk in chunks for token in chunk.tokens], chunks[-1].cached_tokens

    with opened(model=str(write_gemma2(tmp_path / "gemma2.gguf")), slots=1, ctx=512) as engine:
        encode = engine.vocabulary(None).encode
        shared = encode(Text(SYSTEM[:90]))
        prompts = [Tokens((*shared, *range(40 + 10 * day, 45 + 10 * day))) for day in range(4)]
        told = []
        for day, prompt in enumerate(prompts):
            told.append(said(engine, prompt))
            said(engine, Text(f"{day} days later the slot holds this"))
        answer = [token.id for token in told[0][0]]
        turn = Tokens((*prompts[0].ids, *answer, 40))
        told.append(said(engine, turn))
        alone = [said(engine, prompt, share_prefix=False)[0] for prompt in (*prompts, turn)]

    assert [tokens[0].logprob for tokens, _ in told] == pytest.approx([tokens[0].logprob for tokens in alone], abs=5e-3)
    n_known = [n for _, n in told]
    assert n_known[0] == 0
    assert n_known[1] <= 4  # of what all texts begin with
    assert n_known[2:] == [len(shared), len(shared), len(prompts[0].ids) + len(answer) - 1]


def test_who_opts_out_reads_everything_and_leaves_nothing(smollm2):
    prompt = "Opted out. " + SYSTEM
    assert answer(smollm2, prompt, share=False)[1] == 0

    assert answer(smollm2, prompt)[1] == 0
    assert answer(smollm2, prompt, share=False)[1] == 0


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, seed=11)], ids=["greedy", "seeded"])
def test_deterministic_text_is_the_same_shared_or_not_alone_or_among_others(deterministic, sampling):
    prompts = [SYSTEM + question for question in QUESTIONS]
    alone = [answer(deterministic, prompt, sampling=sampling, share=False)[0] for prompt in prompts]

    together = answers(deterministic, prompts, sampling=sampling)
    again = answers(deterministic, list(reversed(prompts)), sampling=sampling)

    assert [text for text, _ in together] == alone
    assert [text for text, _ in reversed(again)] == alone
    assert all(n_cached > 90 for _, n_cached in again)


def test_deterministic_text_is_the_same_whatever_the_pieces_of_its_prompt(deterministic):
    alone = answer(deterministic, LONG, share=False)[0]

    # While others stream, the long prompt is read in small pieces; alone it was read at once.
    among = answers(deterministic, [LONG, *QUESTIONS], share=False, tokens=40)[0][0]

    assert among.startswith(alone)


def test_a_prompt_longer_than_the_first_cache_waits_for_the_whole_one():
    prompt = SYSTEM * 4
    with opened(model=packaged_model(), slots=4, ctx=2048, threads=1) as engine:
        short = answer(engine, QUESTIONS[0], tokens=30)[0]
        long = answer(engine, prompt, tokens=4)[0]
        assert engine.vocabulary(None).count(Text(prompt)) > 256
        again = answer(engine, QUESTIONS[0], tokens=30, share=False)[0]

    assert long
    assert again == short


def test_an_answer_survives_the_growth_of_the_cache():
    with opened(model=packaged_model(), slots=4, ctx=2048, threads=1) as engine:
        grown = answer(engine, QUESTIONS[1], tokens=300)[0]
        again = answer(engine, QUESTIONS[1], tokens=300, share=False)[0]

    assert grown == again
