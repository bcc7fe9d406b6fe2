"""Slots that share one context, in real models: one may use all of it, and several give way to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from corosrv.base.errors import PromptTooLong
from corosrv.contracts.jobs import Chunk, Finish, Job, Pieces, Sampling, Tokens
from corosrv.models.engine import Engine
from tests.support.architectures import ARCHITECTURES
from tests.support.engines import answer, job, opened, packaged_model, read_all, text_of
from tests.support.gguf import write_bert, write_llama
from tests.support.token_rows import token_rows

SLOTS, PART = 4, 256
ALL = SLOTS * PART  # tokens
GOES_ON = Sampling(temperature=0, ignore_eos=True)


def numbered(n_tokens: int, first: int) -> Tokens:
    """A prompt of so many tokens that begins like no other one."""
    return Tokens(tuple(3 + (first + 7 * i * i + 11 * i) % 250 for i in range(n_tokens)))


def said(engine: Engine, prompt: Tokens | Pieces, max_tokens: int = 20) -> list[Chunk]:
    return read_all(engine.submit(asking(prompt, max_tokens)))


def asking(prompt: Tokens | Pieces, max_tokens: int = 20) -> Job:
    return Job((prompt,), max_tokens=max_tokens, sampling=GOES_ON)


def told_at_once(engine: Engine, prompts: Sequence[Tokens], max_tokens: int) -> list[tuple[str, Finish | None]]:
    """What each prompt is answered when all begin in the same step, whatever this thread does: they are one job."""
    chunks = read_all(engine.submit(Job(tuple(prompts), max_tokens=max_tokens, sampling=GOES_ON)))
    return [told([chunk for chunk in chunks if chunk.index == index]) for index in range(len(prompts))]


def told(chunks: Sequence[Chunk]) -> tuple[str, Finish | None]:
    return "".join(chunk.text for chunk in chunks), chunks[-1].finish


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", context=4 * ALL))


@pytest.fixture(scope="module")
def engine(tiny: str) -> Iterator[Engine]:
    with opened(model=tiny, slots=SLOTS, ctx=PART, kv_unified=True, context_shift=True) as engine:
        yield engine


@pytest.fixture
def own_attention(engine: Engine) -> None:
    """Skips a test of texts beside others where libllama's attention computes: its sums depend on places of cells."""
    if not engine.info.own_kernels:
        pytest.skip("corosrv's own attention needs another processor")


@pytest.fixture(scope="module")
def alone(tiny: str) -> Iterator[Engine]:
    """As much context, and one slot to use it."""
    with opened(model=tiny, slots=1, ctx=ALL) as engine:
        yield engine


def test_one_sequence_has_the_context_of_all_slots_and_says_what_it_says_with_one_of_its_own(engine, alone) -> None:
    prompt = numbered(900, 1)

    chunks = said(engine, prompt, max_tokens=100)

    assert engine.info.context == engine.info.shared_cells == ALL
    assert told(chunks) == told(said(alone, prompt, max_tokens=100))
    assert chunks[-1].prompt_tokens == 900


def test_a_prompt_that_all_slots_together_cannot_hold_is_refused(engine) -> None:
    with pytest.raises(PromptTooLong, match="1024"):
        engine.submit(asking(numbered(ALL, 1)))


def test_no_sequence_is_longer_than_the_model_was_trained_for(tmp_path: Path) -> None:
    model = str(write_llama(tmp_path / "short.gguf", context=300))

    with opened(model=model, slots=SLOTS, ctx=PART, kv_unified=True) as engine:
        info = engine.info

    assert (info.context, info.shared_cells) == (300, ALL)


@pytest.mark.usefixtures("own_attention")
def test_sequences_that_grow_out_of_the_context_lose_nothing_and_begin_where_they_were(engine, alone) -> None:
    prompts = [numbered(150, first) for first in range(6)]
    before = engine.stats()

    answers = told_at_once(engine, prompts, max_tokens=300)

    after = engine.stats()
    assert after.preempted > before.preempted
    assert answers == [told(said(alone, prompt, max_tokens=300)) for prompt in prompts]
    assert after.prompt_tokens - before.prompt_tokens < 2 * 6 * 150  # what gave way was kept, and put back


def test_prompts_that_begin_alike_share_what_was_computed(engine) -> None:
    prompt = numbered(200, 40)
    said(engine, prompt)

    chunks = said(engine, Tokens((*prompt.ids, 77)))

    assert chunks[-1].cached_tokens == 200


def test_a_full_context_is_shifted_and_a_text_beside_keeps_its_numbers(engine) -> None:
    shown = Sampling(temperature=0, ignore_eos=True, n_probs=3)
    beside = replace(asking(numbered(20, 60), max_tokens=20), sampling=shown, share_prefix=False)
    expected = [token for chunk in read_all(engine.submit(beside)) for token in chunk.tokens]
    long = replace(asking(numbered(900, 61), max_tokens=400), n_keep=4)

    with engine.submit(long) as reader:
        tokens = [token for chunk in read_all(engine.submit(beside)) for token in chunk.tokens]
        shifted = read_all(reader)

    assert shifted[-1].dropped_tokens
    assert [token.id for token in tokens] == [token.id for token in expected]
    # libllama's sums depend on the places of cells, and move logits by a thousandth.
    tolerance = 1e-4 if engine.info.own_kernels else 1e-2
    assert [token.logprob for token in tokens] == pytest.approx([token.logprob for token in expected], abs=tolerance)


def test_a_slot_is_restored_when_the_one_that_has_the_whole_context_has_ended(engine, tmp_path: Path) -> None:
    path, prompt = str(tmp_path / "a.slot"), numbered(200, 70)
    expected = read_all(engine.submit(replace(asking(prompt), slot=0)))
    engine.save_slot(0, path, "")
    other = numbered(800, 71)
    whole = told(said(engine, other, max_tokens=220))
    n_preempted = engine.stats().preempted

    with engine.submit(replace(asking(other, max_tokens=220), slot=1)) as reader:
        chunks = list(reader.take(60))
        restored = engine.restore_slot(0, path, "")
        chunks += read_all(reader)

    assert told(chunks) == whole
    assert restored.n_tokens == 219
    assert engine.stats().preempted == n_preempted
    assert told(said(engine, prompt)) == told(expected)


@pytest.mark.usefixtures("own_attention")
def test_embedding_rows_are_read_beside_text(tiny: str, engine) -> None:
    ids = [3 + i % 200 for i in range(300)]
    beside = job("Hello", max_tokens=60, sampling=GOES_ON, share_prefix=False)
    text = answer(engine, beside)
    with token_rows(tiny) as table:
        rows = table.pieces(("rows", ids))

        with engine.submit(beside) as reader:
            chunks = said(engine, rows)
            text_beside = text_of(read_all(reader))

    assert told(chunks) == told(said(engine, Tokens(tuple(ids))))
    assert text_beside == text


@pytest.mark.usefixtures("own_attention")
def test_prompts_that_fit_into_the_shared_context_together_wait_for_nobody(tiny: str, alone) -> None:
    prompts = [numbered(700, first) for first in range(4)]

    with opened(model=tiny, slots=4, ctx=ALL, kv_unified=True) as engine:
        readers = [engine.submit(asking(prompt)) for prompt in prompts]
        answers = [told(read_all(reader)) for reader in readers]
        stats = engine.stats()

    assert answers == [told(said(alone, prompt)) for prompt in prompts]
    assert stats.preempted == 0


@pytest.mark.usefixtures("own_attention")
@pytest.mark.parametrize("name", ["gemma2", "gpt-oss", "lfm2", "mamba", "mixture"])
def test_models_of_every_kind_of_memory_give_way_and_go_on(tmp_path: Path, name: str) -> None:
    model = str(ARCHITECTURES[name](tmp_path / "model.gguf"))
    prompts = [numbered(150, first) for first in range(5)]
    with opened(model=model, slots=1, ctx=512) as alone:
        expected = [told(said(alone, prompt, max_tokens=150)) for prompt in prompts]

    with opened(model=model, slots=SLOTS, ctx=PART, kv_unified=True) as engine:
        answers = told_at_once(engine, prompts, max_tokens=150)
        stats = engine.stats()

    assert stats.preempted > 0
    assert answers == expected


def test_a_model_that_reads_texts_in_one_piece_shares_nothing(tmp_path: Path) -> None:
    model = str(write_bert(tmp_path / "bert.gguf"))

    with opened(model=model, slots=2, ctx=64, kv_unified=True) as engine:
        info = engine.info

    assert (info.context, info.shared_cells) == (64, 0)


@pytest.mark.usefixtures("own_attention")
@pytest.mark.model
def test_the_packaged_model_says_the_same_in_a_shared_context() -> None:
    prompts = ["The capital of France is", "Water boils at", "Once upon a time there was", "def fibonacci(n):"]
    jobs = [job(prompt, max_tokens=24, share_prefix=False) for prompt in prompts]

    with opened(model=packaged_model(), slots=SLOTS, ctx=PART) as own:
        expected = [answer(own, it) for it in jobs]
    with opened(model=packaged_model(), slots=SLOTS, ctx=PART, kv_unified=True) as sharing:
        readers = [sharing.submit(it) for it in jobs]
        together = [text_of(read_all(reader)) for reader in readers]

    assert together == expected
