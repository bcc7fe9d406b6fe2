"""Prompts of embedding rows in real models: rows of the token table say what the tokens say, to the last bit."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corosrv.base.errors import NotSupported, PromptTooLong, QueueFull, Refused
from corosrv.contracts.jobs import Chunk, EmbedJob, Finish, Job, Pieces, Prompt, Rows, Sampling, Terms, Tokens
from corosrv.models.engine import Engine
from tests.support.engines import is_idle, opened, packaged_model, read_all, text_of
from tests.support.gguf import Tensors, write_llama
from tests.support.token_rows import TokenRows, token_rows
from tests.support.waiting import wait_until

SHOWN = Sampling(temperature=0, n_probs=20)  # with the likeliest tokens, whose numbers are compared
IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(200)]

Told = list[tuple[int, float | None, tuple[tuple[int, float], ...]]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", context=1024))


@pytest.fixture(scope="module")
def table(tiny: str) -> Iterator[TokenRows]:
    with token_rows(tiny) as rows:
        yield rows


@pytest.fixture(scope="module")
def engine(tiny: str) -> Iterator[Engine]:
    with opened(model=tiny, slots=4, ctx=512, deterministic=True) as engine:
        yield engine


def ask(engine: Engine, *prompts: Prompt, **chosen: Any) -> list[Chunk]:
    asked = Job(prompts, **{"max_tokens": 12, "sampling": SHOWN, "share_prefix": False, **chosen})
    return read_all(engine.submit(asked))


def told(chunks: Sequence[Chunk], index: int = 0) -> Told:
    """Every token of an answer, with all the likelihoods that came with it."""
    return [
        (token.id, token.logprob, tuple((other.id, other.logprob) for other in token.top))
        for chunk in chunks
        if chunk.index == index
        for token in chunk.tokens
    ]


def ways(ids: Sequence[int]) -> dict[str, list[tuple[str, Sequence[int]]]]:
    """Ways to cut a prompt into runs of tokens and of rows."""
    third, fifth = len(ids) // 3, -(-len(ids) // 5)
    parts = [ids[first : first + fifth] for first in range(0, len(ids), fifth)]
    return {
        "rows": [("rows", ids)],
        "rows last": [("tokens", ids[:third]), ("rows", ids[third:])],
        "rows first": [("rows", ids[:third]), ("tokens", ids[third:])],
        "rows between": [("tokens", ids[:third]), ("rows", ids[third:-third]), ("tokens", ids[-third:])],
        "by turns": [("rows" if number % 2 else "tokens", part) for number, part in enumerate(parts)],
    }


@pytest.mark.parametrize("way", ways(IDS))
@pytest.mark.parametrize("n_tokens", [3, 10, 63, 200])
def test_rows_of_tokens_have_the_numbers_and_the_text_of_tokens(
    engine: Engine, table: TokenRows, way: str, n_tokens: int
):
    ids = IDS[:n_tokens]
    expected = ask(engine, Tokens(tuple(ids)))

    chunks = ask(engine, table.pieces(*ways(ids)[way]))

    assert told(chunks) == told(expected)
    assert text_of(chunks) == text_of(expected)
    assert chunks[-1].prompt_tokens == n_tokens
    assert len(told(expected)) == 12


@pytest.mark.parametrize("n_tokens", [1, 3, 63, 200])
def test_rows_in_the_same_batches_as_tokens_have_their_numbers_without_determinism(
    tiny: str, table: TokenRows, n_tokens: int
):
    with opened(model=tiny, ctx=512) as engine:
        expected = told(ask(engine, Tokens(tuple(IDS[:n_tokens]))))

        assert told(ask(engine, table.pieces(("rows", IDS[:n_tokens])))) == expected


@pytest.mark.model
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_rows_of_the_packaged_model_have_the_numbers_of_its_tokens(is_deterministic: bool):
    model = packaged_model()
    with opened(model=model, ctx=512, deterministic=is_deterministic) as engine, token_rows(model) as table:
        for n_tokens in (9, 60):
            ids = [100 + 37 * i for i in range(n_tokens)]
            expected = told(ask(engine, Tokens(tuple(ids))))
            answers = {way: told(ask(engine, table.pieces(*runs))) for way, runs in ways(ids).items()}

            assert answers == dict.fromkeys(answers, expected)
            assert len(expected) == 12


def test_prompts_of_rows_and_of_tokens_that_run_together_disturb_none(engine: Engine, table: TokenRows):
    parts = [IDS[i : i + 20 + 9 * i] for i in range(6)]
    alone = [told(ask(engine, Tokens(tuple(ids)))) for ids in parts]

    together = ask(
        engine, *(table.pieces(("rows", ids)) if i % 2 else Tokens(tuple(ids)) for i, ids in enumerate(parts))
    )

    assert [told(together, i) for i in range(len(parts))] == alone


def test_equal_rows_are_computed_once_and_other_rows_never_taken_for_them(engine: Engine, table: TokenRows):
    head, middle, other, tail = IDS[:20], IDS[20:60], IDS[60:100], IDS[100:110]
    fresh = told(ask(engine, Tokens((*head, *other, *tail))))

    def cached(rows: Sequence[int], **chosen: Any) -> tuple[int, Told]:
        prompt = table.pieces(("tokens", head), ("rows", rows), ("tokens", tail))
        chunks = ask(engine, prompt, share_prefix=True, **chosen)
        wait_until(lambda: is_idle(engine))
        return chunks[-1].cached_tokens, told(chunks)

    assert cached(middle)[0] == 0
    assert cached(middle)[0] == len(head) + len(middle) + len(tail) - 1
    assert cached(other) == (len(head), fresh)
    assert cached(middle, terms=Terms(caller="somebody else"))[0] == 0


def test_a_conversation_goes_on_behind_its_rows_without_reading_them_again(engine: Engine, table: TokenRows):
    first = table.pieces(("tokens", IDS[:10]), ("rows", IDS[10:50]), ("tokens", IDS[50:55]))
    said = [token for token, _, _ in told(ask(engine, first, share_prefix=True))]
    wait_until(lambda: is_idle(engine))
    longer = Pieces((*first.pieces, Tokens((*said, *IDS[60:70]))))

    chunks = ask(engine, longer, share_prefix=True)

    assert chunks[-1].cached_tokens >= 55 + len(said) - 1
    assert told(chunks) == told(ask(engine, Tokens((*IDS[:55], *said, *IDS[60:70]))))


def test_several_answers_of_one_prompt_of_rows_are_those_of_its_tokens(engine: Engine, table: TokenRows):
    drawn = replace(SHOWN, temperature=1.0, seed=5)
    expected = ask(engine, Tokens(tuple(IDS[:30])), n=3, sampling=drawn)

    chunks = ask(engine, table.pieces(("rows", IDS[:30])), n=3, sampling=drawn)

    assert [told(chunks, i) for i in range(3)] == [told(expected, i) for i in range(3)]
    assert told(chunks, 0) != told(chunks, 1)


@pytest.mark.parametrize(
    ("prompt", "words", "error"),
    [
        (Rows.of_data(bytes(4 * 31), 31), "32 numbers, not 31", Refused),
        (Rows.of_data(bytes(4 * 32 * 512), 32), "512", PromptTooLong),
        (Rows.of_data(b"\x00\x00\xc0\x7f" * 32, 32), "not finite", Refused),
        (Rows.of_data(b"\x00\x00\x80\xff" * 32, 32), "not finite", Refused),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused(engine: Engine, prompt: Rows, words: str, error: type[Refused]):
    with pytest.raises(error, match=words):
        ask(engine, Pieces((Tokens((5,)), prompt)))


def test_a_synthetic_model_takes_no_rows():
    with opened() as engine, pytest.raises(NotSupported, match="takes no embedding rows"):
        ask(engine, Pieces((Rows.of_data(bytes(4), 1),)))


def test_what_has_no_meaning_for_rows_is_refused_by_name(engine: Engine, table: TokenRows):
    prompt = table.pieces(("rows", IDS[:5]))

    with pytest.raises(NotSupported, match="logprobs of a prompt"):
        ask(engine, prompt, scores_prompt=True)
    with pytest.raises(NotSupported, match="cannot be embedded"):
        engine.submit(EmbedJob((prompt,)))


def test_penalties_and_dry_count_tokens_and_skip_rows(engine: Engine, table: TokenRows):
    sampling = replace(SHOWN, repeat_penalty=1.5, repeat_last_n=-1, dry_multiplier=1.0, dry_sequence_breakers=())
    runs = [("tokens", IDS[:8]), ("rows", IDS[8:30]), ("tokens", IDS[30:36])]

    chunks = ask(engine, table.pieces(*runs), sampling=sampling)

    assert chunks[-1].finish is not Finish.ERROR
    assert len(told(chunks)) == 12


@contextmanager
def taken(model: str, **chosen: Any) -> Iterator[Engine]:
    """An engine whose slot 0 is held by an answer that goes on for minutes."""
    held = Job((Tokens((5,)),), max_tokens=10_000_000, sampling=Sampling(temperature=0, ignore_eos=True), slot=0)
    with (
        opened(model=model, slots=2, ctx=1024, context_shift=True, reader_bytes=1 << 30, **chosen) as engine,
        engine.submit(held),
    ):
        wait_until(lambda: (stats := engine.stats()) and stats.running == 1)
        yield engine


def test_a_prompt_of_rows_that_waits_can_be_cancelled(tiny: str, table: TokenRows):
    with taken(tiny) as engine:
        waiting = engine.submit(Job((table.pieces(("rows", IDS)),), slot=0))
        waiting.cancel()
        chunks = read_all(waiting)

        assert chunks[-1].finish is Finish.CANCELLED


def test_a_prompt_of_rows_that_waits_too_long_is_ended_by_its_code(tiny: str, table: TokenRows):
    with taken(tiny, queue_timeout_s=0.05) as engine:
        chunks = read_all(engine.submit(Job((table.pieces(("rows", IDS)),), slot=0)))

        assert chunks[-1].code == "queue_timeout"


def _overflow(tensors: Tensors) -> None:
    """Makes the first number of a row overflow in the first layer, where it is not 0: in no token's row it is."""
    shape, numbers = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = shape, [0.0 if i % shape[0] == 0 else number for i, number in enumerate(numbers)]
    shape, norms = tensors["blk.0.attn_norm.weight"]
    tensors["blk.0.attn_norm.weight"] = shape, [3e38, *norms[1:]]


def test_rows_that_a_model_makes_no_numbers_of_end_alone_and_leave_nothing_in_their_slot(tmp_path: Path):
    model = str(write_llama(tmp_path / "overflowing.gguf", context=1024, edit=_overflow))
    with opened(model=model, slots=2, ctx=512, deterministic=True) as engine, token_rows(model) as table:
        good = table.rows(IDS[:40])
        bad = Rows.of_data(struct.pack("<f", 1.0) + table.data(IDS[:40])[4:], table.width)
        prompts = [Tokens(tuple(IDS[:50])), Pieces((Tokens((5,)), good))]
        expected = [told(ask(engine, prompt)) for prompt in prompts]
        with engine.submit(Job((prompts[0],), max_tokens=400, sampling=SHOWN)) as beside:
            ended = [ask(engine, Pieces((Tokens((5,)), bad, Tokens((6, 7)))), share_prefix=True) for _ in range(2)]
            stream = told(read_all(beside))
        after = [told(ask(engine, prompt, n=2), index) for prompt in prompts for index in range(2)]

    assert [(chunks[-1].finish, chunks[-1].code) for chunks in ended] == [(Finish.ERROR, "embeds_not_finite")] * 2
    assert stream[:12] == expected[0]
    assert after == [expected[0]] * 2 + [expected[1]] * 2


def test_the_bytes_of_rows_that_wait_and_run_are_bounded(tiny: str, table: TokenRows):
    prompt = table.pieces(("rows", IDS[:10]))
    with taken(tiny, row_bytes=2 * 10 * 4 * table.width) as engine:
        two = engine.submit(Job((prompt,), n=50, slot=0)), engine.submit(Job((prompt,), slot=0))

        with pytest.raises(QueueFull, match="embedding rows"):
            engine.submit(Job((prompt,), slot=0))

        for waiting in two:
            with waiting:
                waiting.cancel()
        wait_until(lambda: (stats := engine.stats()) and stats.waiting == 0)
        assert told(ask(engine, table.pieces(("rows", IDS)), slot=1))


def test_one_prompt_of_many_rows_runs_alone_whatever_its_bytes(tiny: str, table: TokenRows):
    with opened(model=tiny, slots=2, ctx=512, row_bytes=0) as engine:
        assert len(told(ask(engine, table.pieces(("rows", IDS))))) == 12
