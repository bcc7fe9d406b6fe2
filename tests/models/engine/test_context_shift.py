"""Contexts that are full, in real models: an answer goes on without its oldest tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from corosrv.base.errors import ModelFailed
from corosrv.contracts.jobs import Chunk, Finish, Job, Pieces, Sampling, Tokens
from corosrv.models.engine import Engine
from tests.support.architectures import write_mamba
from tests.support.engines import answer, endless, job, opened, packaged_model, read_all, text_of
from tests.support.gguf import write_llama, write_qwen2vl
from tests.support.token_rows import token_rows

CONTEXT = 256  # tokens, libllama's least of a slot
GOES_ON = Sampling(temperature=0, ignore_eos=True)
STORY = "Once upon a time there was a small boat on a wide river, and"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", context=CONTEXT))


@pytest.fixture(scope="module")
def engine(tiny: str) -> Iterator[Engine]:
    with opened(model=tiny, slots=2, ctx=CONTEXT, context_shift=True) as engine:
        yield engine


def n_generated(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.n_tokens for chunk in chunks)


def test_a_generation_three_times_as_long_as_its_context_goes_on_and_begins_as_one_that_is_not_shifted(
    tiny: str, engine: Engine
) -> None:
    long = job(STORY, max_tokens=3 * CONTEXT, sampling=GOES_ON, n_keep=4)
    with opened(model=tiny, slots=2, ctx=CONTEXT) as plain:
        cut = read_all(plain.submit(long))

    shifted = read_all(engine.submit(long))
    again = read_all(engine.submit(long))

    assert (cut[-1].finish, cut[-1].dropped_tokens) == (Finish.LENGTH, 0)
    assert (shifted[-1].finish, shifted[-1].dropped_tokens > 0) == (Finish.LENGTH, True)
    assert n_generated(shifted) == 3 * CONTEXT
    assert text_of(shifted).startswith(text_of(cut))
    assert text_of(again) == text_of(shifted)  # also where it began from what the first one kept of its prompt
    assert again[-1].cached_tokens == again[-1].prompt_tokens - 1


@pytest.mark.model
def test_the_packaged_model_goes_on_and_a_text_beside_stays_as_it_is() -> None:
    prompt = Tokens(tuple([1, *range(400, 640)]))  # nearly fills the context
    beside = job("The capital of France is", max_tokens=12, sampling=GOES_ON)
    with opened(model=packaged_model(), slots=2, ctx=CONTEXT, context_shift=True) as engine:
        alone = answer(engine, replace(beside, share_prefix=False))

        with engine.submit(Job((prompt,), max_tokens=40, sampling=GOES_ON)) as reader:
            text_beside = answer(engine, replace(beside, share_prefix=False))
            shifted = read_all(reader)

    assert (n_generated(shifted), shifted[-1].dropped_tokens > 0) == (40, True)
    assert text_beside == alone


def test_a_text_of_another_slot_keeps_its_numbers_while_one_is_shifted(engine: Engine) -> None:
    shown = Sampling(temperature=0, ignore_eos=True, n_probs=3)
    beside = job("Hello", max_tokens=40, sampling=shown, share_prefix=False)
    alone = read_all(engine.submit(beside))

    with engine.submit(job("x", max_tokens=2 * CONTEXT, sampling=GOES_ON)) as reader:
        tokens = [token for chunk in read_all(engine.submit(beside)) for token in chunk.tokens]
        shifted = read_all(reader)

    assert shifted[-1].dropped_tokens
    expected = [token for chunk in alone for token in chunk.tokens]
    assert [token.id for token in tokens] == [token.id for token in expected]
    assert [token.logprob for token in tokens] == pytest.approx([token.logprob for token in expected], abs=1e-4)


def test_an_answer_without_a_limit_goes_on_only_where_it_is_streamed(engine: Engine) -> None:
    unlimited = endless("Hello", sampling=GOES_ON)

    whole = read_all(engine.submit(unlimited))
    with engine.submit(replace(unlimited, stream=True)) as reader:
        n_streamed = 0
        for chunk in reader:
            n_streamed += chunk.n_tokens
            if n_streamed > 2 * CONTEXT:
                break

    assert whole[-1].finish is Finish.LENGTH
    assert n_generated(whole) + whole[-1].prompt_tokens == CONTEXT
    assert whole[-1].dropped_tokens == 0


def test_answers_to_embedding_rows_end_with_their_context(tiny: str, engine: Engine) -> None:
    ids = [3 + i % 200 for i in range(20)]
    with token_rows(tiny) as table:
        prompt = Pieces((Tokens(tuple(ids)), *table.pieces(("rows", ids)).pieces))

    chunks = read_all(engine.submit(Job((prompt,), max_tokens=3 * CONTEXT, sampling=GOES_ON)))

    assert (chunks[-1].finish, n_generated(chunks)) == (Finish.LENGTH, CONTEXT - 40)


@pytest.mark.parametrize(
    ("write", "chosen", "reason"),
    [
        (write_mamba, {}, "cannot move tokens"),
        (write_qwen2vl, {}, "cannot move tokens"),
        (write_llama, {"rope_scaling": "linear", "yarn_attn_factor": 1.5}, "would change those of others"),
    ],
)
def test_a_model_that_cannot_be_shifted_is_refused_by_name(tmp_path: Path, write, chosen, reason: str) -> None:  # type: ignore[no-untyped-def]
    model = str(write(tmp_path / "model.gguf"))

    with (
        pytest.raises(ModelFailed, match=f"COROSRV_CONTEXT_SHIFT=1 is not possible.*{reason}"),
        opened(model=model, slots=2, ctx=CONTEXT, context_shift=True, **chosen),
    ):
        pass

    with opened(model=model, slots=2, ctx=CONTEXT, **chosen) as engine:
        assert read_all(engine.submit(job()))[-1].finish is not Finish.ERROR
