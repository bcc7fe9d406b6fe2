"""COROSRV_DETERMINISTIC=1 with images: the same bits alone, among others, known already, and in steps of any size."""

from collections.abc import Iterator, Sequence

import pytest

from corosrv.contracts.jobs import Chunk, Job, Sampling, Text
from corosrv.images.vision.engine import VisionEngine
from tests.images.vision.readings import AFTER, BEFORE, WRITERS, Files, job, picture_of, serving, write_files
from tests.support.engines import is_idle, read_all
from tests.support.waiting import wait_until

SHOWN = Sampling(temperature=0, n_probs=20)
STREAM = "The ship left the harbour at dawn. "

Bits = list[tuple[int, float | None, tuple[tuple[int, float], ...]]]


@pytest.fixture(scope="module", params=WRITERS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def files(kind, tmp_path_factory) -> Files:
    return write_files(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def engine(files) -> Iterator[VisionEngine]:
    with serving(files, deterministic=True, slots=4) as engine:
        yield engine


def bits(chunks: Sequence[Chunk]) -> Bits:
    return [
        (token.id, token.logprob, tuple((other.id, other.logprob) for other in token.top))
        for chunk in chunks
        for token in chunk.tokens
    ]


def looking(kind: str, seed: int = 1, **fields: object) -> Job:
    return job(BEFORE, picture_of(kind, seed), AFTER, **{"sampling": SHOWN, "share_prefix": False} | fields)


def told(engine: VisionEngine, asked: Job) -> Bits:
    return bits(read_all(engine.submit(asked)))


def test_answers_to_images_and_texts_have_the_same_bits_alone_and_among_others(engine, kind):
    text = Job((Text(STREAM),), max_tokens=400, sampling=SHOWN, share_prefix=False)
    asked = [text, looking(kind), looking(kind, seed=2), looking(kind, seed=3)]
    alone = [told(engine, each) for each in asked]

    submitted = [engine.submit(each) for each in asked]  # the images are encoded already
    together = [bits(read_all(reader)) for reader in submitted]

    assert together == alone
    assert alone[1] != alone[2]


def test_an_image_that_came_before_has_the_bits_of_one_that_is_computed(engine, kind):
    fresh = told(engine, looking(kind, seed=5))
    first = told(engine, looking(kind, seed=5, share_prefix=True))
    wait_until(lambda: is_idle(engine))

    again = read_all(engine.submit(looking(kind, seed=5, share_prefix=True)))

    assert again[-1].cached_tokens == again[-1].prompt_tokens - 1
    assert bits(again) == first == fresh


def test_an_image_has_the_same_bits_in_steps_of_any_size(engine, files, kind):
    with serving(files, deterministic=True, batch=5) as narrow:
        assert told(narrow, looking(kind)) == told(engine, looking(kind))
