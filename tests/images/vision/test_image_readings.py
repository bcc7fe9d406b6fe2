"""Images whose rows have M-RoPE positions, or are not causal: the engine reads them as libmtmd's own helper does."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from corosrv.base.errors import PromptTooLong, Refused
from corosrv.contracts.jobs import EmbedJob, Finish, Image, Job, Pieces, Rows, Sampling, Text, Tokens
from corosrv.images.vision.encoder import ImageEncoder
from corosrv.images.vision.engine import VisionEngine
from tests.images.vision.encoders import N_EMBD, encode, options
from tests.images.vision.readings import (
    AFTER,
    BEFORE,
    WRITERS,
    Files,
    by_helper,
    distance,
    job,
    likelihoods,
    picture_of,
    serving,
    write_files,
)  # fmt: skip
from tests.support.engines import answer, read_all, text_of

LONG = "and then a long text follows " * 8


@pytest.fixture(scope="module", params=WRITERS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def files(kind, tmp_path_factory) -> Files:
    return write_files(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def engine(files) -> Iterator[VisionEngine]:
    with serving(files) as engine:
        yield engine


@pytest.fixture
def picture(kind) -> Image:
    return picture_of(kind)


def test_the_engine_reads_an_image_as_libmtmd_does(engine, files, picture):
    chunks = read_all(engine.submit(job(BEFORE, picture, AFTER)))

    assert distance(likelihoods(chunks), by_helper(files, BEFORE, picture, AFTER)) < 1e-3


def test_texts_and_images_behind_an_image_have_the_positions_that_libmtmd_gives_them(engine, files, kind, picture):
    parts = BEFORE, picture, LONG, picture_of(kind, seed=2), picture, AFTER

    chunks = read_all(engine.submit(job(*parts)))

    assert distance(likelihoods(chunks), by_helper(files, *parts[:4], "", *parts[4:])) < 1e-3


def test_an_image_is_read_in_small_steps_as_libmtmd_reads_it_in_one(files, picture):
    with serving(files, batch=5) as engine:
        chunks = read_all(engine.submit(job(BEFORE, picture, AFTER)))

    assert distance(likelihoods(chunks), by_helper(files, BEFORE, picture, AFTER)) < 1e-3


def test_the_same_rows_have_other_numbers_where_they_are_read_as_tokens(engine, files, picture):
    encoder = ImageEncoder(options(*files), N_EMBD)
    try:
        encoder.start()
        encoded = encode(encoder, picture)[picture.sha256]
    finally:
        encoder.close()
    before, after = (Tokens(tuple(text.encode())) for text in (BEFORE, AFTER))
    as_tokens = [Rows.of_data(piece.data, N_EMBD) if isinstance(piece, Rows) else piece for piece in encoded.pieces]
    asked = Job((Pieces((before, *encoded.pieces, after)),), max_tokens=1, sampling=job().sampling)

    expected = likelihoods(read_all(engine.submit(asked)))
    seen = likelihoods(read_all(engine.submit(replace(asked, prompts=(Pieces((before, *as_tokens, after)),)))))

    assert distance(seen, expected) > 1e-2


def test_a_conversation_goes_on_behind_an_image_as_if_it_were_read_anew(engine, picture):
    read_all(engine.submit(job(BEFORE, picture, " and then?")))

    chunks = read_all(engine.submit(job(BEFORE, picture, " and then what?")))
    anew = read_all(engine.submit(job(BEFORE, picture, " and then what?", share_prefix=False)))

    assert chunks[-1].cached_tokens > len(BEFORE) + 4
    assert text_of(chunks) == text_of(anew)
    for number in (0, 7):
        assert distance(likelihoods(chunks, number), likelihoods(anew, number)) < 1e-2


def test_several_answers_to_an_image_are_those_of_one(engine, picture):
    one = answer(engine, job(BEFORE, picture, AFTER))

    chunks = read_all(engine.submit(job(BEFORE, picture, AFTER, n=3)))

    assert [text_of(chunks, index) for index in range(3)] == [one] * 3


def test_an_image_that_no_step_has_room_for_is_refused_if_it_is_read_in_one_piece(files, kind, picture):
    with serving(files, batch=3) as engine:
        if kind == "gemma3":
            with pytest.raises(Refused, match=r"4 rows that are read in one piece.* at most 3.*COROSRV_BATCH"):
                engine.submit(job(BEFORE, picture, AFTER))
        else:
            assert answer(engine, job(BEFORE, picture, AFTER))
        assert answer(engine, Job((Text(BEFORE),), max_tokens=4))


def test_each_row_of_an_image_takes_room_in_the_context_whatever_its_position(engine, kind, picture):
    context = engine.card(None).max_rows + 1
    n_prompt = read_all(engine.submit(job("x", picture, max_tokens=1)))[-1].prompt_tokens - 1
    endless = Sampling(temperature=0, ignore_eos=True, n_probs=0)

    chunks = read_all(engine.submit(job("x" * (context - n_prompt - 20), picture, max_tokens=None, sampling=endless)))

    assert n_prompt >= (12 if kind == "qwen2vl" else 4)
    assert (chunks[-1].finish, chunks[-1].prompt_tokens) == (Finish.LENGTH, context - 20)
    assert sum(len(chunk.tokens) for chunk in chunks) in (20, 21)  # the last one is drawn, and never read
    with pytest.raises(PromptTooLong):
        engine.submit(job("x" * (context - n_prompt), picture))


def test_what_has_no_meaning_for_images_is_refused_by_name(engine, picture):
    with pytest.raises(Refused, match="logprobs of a prompt"):
        engine.submit(job(BEFORE, picture, scores_prompt=True))
    with pytest.raises(Refused, match="images"):
        engine.submit(EmbedJob(job(BEFORE, picture).prompts))


def test_the_slot_of_an_image_is_not_saved(engine, picture, tmp_path):
    read_all(engine.submit(job(BEFORE, picture, AFTER, slot=1)))

    with pytest.raises(Refused, match="embedding rows"):
        engine.save_slot(1, str(tmp_path / "slot.bin"))
