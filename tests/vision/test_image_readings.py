"""Images whose rows have M-RoPE positions, or are not causal: the engine reads them as libmtmd's own helper does."""

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from corosrv.errors import Refused
from corosrv.jobs import Chunk, Image, Job, MultimodalText, Pieces, Rows, Sampling, Text
from corosrv.settings import ModelSettings
from corosrv.vision.engine import VisionEngine
from tests.support import gguf, projector
from tests.support.engines import answer, read_all, text_of
from tests.vision.encoders import N_EMBD, NobodyLeaves, image

N_VOCAB = 259
BEFORE, AFTER = "Look: ", " what?"
WRITERS: dict[str, tuple[Callable[..., Path], Callable[..., Path]]] = {
    "gemma3": (gguf.write_llama, projector.write_gemma3),  # not causal
    "qwen2vl": (gguf.write_qwen2vl, projector.write_qwen2vl),  # M-RoPE
}
PICTURES = {"gemma3": image(width=70, height=60), "qwen2vl": image(width=112, height=84)}  # 4 and 12 rows

Files = tuple[str, str]


@contextmanager
def serving(files: Files, **changes: object) -> Iterator[VisionEngine]:
    model, mmproj = files
    values = {"model": model, "mmproj": mmproj, "slots": 2, "threads": 1, "encoder_threads": 1, "ctx": 512}
    engine = VisionEngine(ModelSettings(**(values | {"kernels": "ggml"} | changes)), NobodyLeaves)
    try:
        engine.open()
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module", params=WRITERS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def files(kind, tmp_path_factory) -> Files:
    write_model, write_projector = WRITERS[kind]
    folder = tmp_path_factory.mktemp(kind)
    model = write_model(folder / "model.gguf", context=1024)
    return str(model), str(write_projector(folder / "mmproj.gguf", N_EMBD))


@pytest.fixture(scope="module")
def engine(files) -> Iterator[VisionEngine]:
    with serving(files) as engine:
        yield engine


@pytest.fixture
def picture(kind) -> Image:
    return PICTURES[kind]


def job(*parts: str | Image, **fields: object) -> Job:
    values = {"max_tokens": 8, "sampling": Sampling(temperature=0, n_probs=N_VOCAB)} | fields
    return Job((MultimodalText(parts),), **values)


def likelihoods(chunks: list[Chunk], number: int = 0) -> dict[int, float]:
    """Of all tokens, where the answer has this one."""
    tokens = [token for chunk in chunks for token in chunk.tokens]
    return {candidate.id: candidate.logprob for candidate in tokens[number].top}


def by_helper(files: Files, picture: Image) -> dict[int, float]:
    """The same by libmtmd, behind the text that follows the picture. Waits for a process."""
    case = {
        "model": files[0],
        "mmproj": files[1],
        "width": picture.width,
        "height": picture.height,
        "pixels": picture.pixels.hex(),
        "before": BEFORE,
        "after": AFTER,
        "segments": [],
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.helper_logits"],
        input=json.dumps(case), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logits = struct.unpack(f"<{N_VOCAB}f", bytes.fromhex(json.loads(done.stdout)["helper"]))
    total = math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits)
    return {token: logit - total for token, logit in enumerate(logits)}


def distance(a: dict[int, float], b: dict[int, float]) -> float:
    assert a.keys() == b.keys()
    return max(abs(a[token] - b[token]) for token in a)


def test_the_engine_reads_an_image_as_libmtmd_does(engine, files, picture):
    chunks = read_all(engine.submit(job(BEFORE, picture, AFTER)))

    assert distance(likelihoods(chunks), by_helper(files, picture)) < 1e-3


def test_the_same_rows_have_other_numbers_where_they_are_read_as_tokens(engine, picture):
    prompt = job(BEFORE, picture, AFTER)
    (pieces,) = engine._prompts().read(prompt.prompts, prompt.terms)
    as_tokens = tuple(
        Rows.of_data(piece.data, piece.width) if isinstance(piece, Rows) else piece for piece in pieces.pieces
    )

    expected = likelihoods(read_all(engine.submit(replace(prompt, prompts=(pieces,)))))
    seen = likelihoods(read_all(engine.submit(replace(prompt, prompts=(Pieces(as_tokens),)))))

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
