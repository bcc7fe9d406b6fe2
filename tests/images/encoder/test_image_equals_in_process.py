"""Rows by the encoder process against libmtmd's own helper in one process: the same logits, bit for bit."""

import functools
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corosrv.images.transfer.messages import (
    MROPE,
    NON_CAUSAL,
    ImageMeasured,
    MeasureImage,
    RowSegment,
    TokenSegment,
    TransferMeta,
)
from tests.images.encoder.pool import EPOCH, HandDriver, HandPool, geometry
from tests.support import gguf, projector

N_EMBD = 32


WRITERS: dict[str, tuple[Callable[..., Path], Callable[..., Path]]] = {
    "mlp": (gguf.write_llama, projector.write_mlp),
    "idefics3": (
        functools.partial(gguf.write_llama, special=projector.IDEFICS3_TOKENS),
        projector.write_idefics3,
    ),  # tiles
    "gemma3": (gguf.write_llama, projector.write_gemma3),  # not causal
    "qwen2vl": (gguf.write_qwen2vl, projector.write_qwen2vl),  # M-RoPE
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Callable[[str], tuple[str, str]]:
    """The paths of a model and a projector of this type."""
    folder = tmp_path_factory.mktemp("files")

    @functools.cache
    def write(kind: str) -> tuple[str, str]:
        write_model, write_projector = WRITERS[kind]
        model = write_model(folder / f"{kind}.gguf", context=1024)
        return str(model), str(write_projector(folder / f"{kind}-mmproj.gguf", N_EMBD))

    return write


def segments_by_process(model: str, mmproj: str, image: dict[str, Any], n_blocks: int) -> list[dict[str, Any]]:
    """Token ids and rows, as the encoder process gives them through a pool of this size."""
    pool = HandPool(geometry(n_blocks, block_rows=4, n_embd=N_EMBD))
    driver = HandDriver(model, mmproj, (MROPE, NON_CAUSAL))
    try:
        driver.greet(pool, N_EMBD)
        driver.answer()
        driver.send(MeasureImage(EPOCH, image["width"], image["height"]))
        measured = driver.answer()
        driver.open_image(1, image["width"], image["height"], bytes.fromhex(image["pixels"]))
        meta = driver.answer()
        assert isinstance(meta, TransferMeta)
        assert isinstance(measured, ImageMeasured)
        assert measured.n_tokens == sum(_n_tokens(segment) for segment in meta.segments)
        rows: list[tuple[float, ...]] = []
        for gen in range(1, meta.total + 1):
            driver.grant(pool, 1, gen, len(rows), tuple(range(n_blocks)))
            driver.answer()
            rows += [row for block in range(n_blocks) for row in pool.rows(block)]
            if len(rows) == meta.total:
                return [_content(segment, rows) for segment in meta.segments]
        raise AssertionError(f"{len(rows)} rows of {meta.total}")
    finally:
        driver.close()
        pool.close()


def _n_tokens(segment: TokenSegment | RowSegment) -> int:
    return segment.n if isinstance(segment, RowSegment) else len(segment.ids)


def _content(segment: TokenSegment | RowSegment, rows: list[tuple[float, ...]]) -> dict[str, Any]:
    """A segment as values for JSON, with its share of the rows."""
    content = msgspec.structs.asdict(segment)
    if isinstance(segment, RowSegment):
        taken, rows[: segment.n] = rows[: segment.n], []
        content["rows"] = b"".join(struct.pack(f"<{len(row)}f", *row) for row in taken).hex()
    return content


def compare(model: str, mmproj: str, image: dict[str, Any], segments: list[dict[str, Any]]) -> dict[str, str]:
    """Both rows of logits. Waits."""
    case = {"model": model, "mmproj": mmproj, **image, "before": "Look: ", "after": " what?", "segments": segments}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.helper_logits"],
        input=json.dumps(case), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logits: dict[str, str] = json.loads(done.stdout)
    return logits


def picture(width: int = 56, height: int = 56, seed: int = 1) -> dict[str, Any]:
    return {"width": width, "height": height, "pixels": projector.random_pixels(width, height, seed).hex()}


@pytest.mark.parametrize(
    ("kind", "n_blocks", "image"),
    [
        ("mlp", 1, picture()),
        ("mlp", 3, picture(100, 30)),
        ("mlp", 64, picture(17, 90)),
        ("idefics3", 3, picture(100, 60)),
        ("gemma3", 2, picture(70, 60)),
        ("qwen2vl", 2, picture(112, 84)),
    ],
    ids=["one block", "three blocks", "64 blocks", "tiles", "non-causal", "M-RoPE"],
)
def test_image_equals_in_process(files, kind, n_blocks, image):
    segments = segments_by_process(*files(kind), image, n_blocks)

    logits = compare(*files(kind), image, segments)

    assert len(logits["rows"]) >= 2 * 4 * 259
    assert logits["rows"] == logits["helper"]


def test_tiles_have_text_around_and_between_them(files):
    segments = segments_by_process(*files("idefics3"), picture(100, 60), 4)

    assert ["ids" in segment for segment in segments] == [True, False] * 5 + [True]


def test_mrope_rows_have_positions_of_their_place_in_the_image(files):
    (rows,) = [s for s in segments_by_process(*files("qwen2vl"), picture(112, 84), 4) if "rows" in s]

    assert (rows["n"], rows["n_positions"]) == (12, 4)
    assert rows["positions"][:5] == ((0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 2, 0), (0, 0, 3, 0), (0, 1, 0, 0))


def test_another_image_gives_other_logits(files):
    segments = segments_by_process(*files("mlp"), picture(seed=2), 4)

    logits = compare(*files("mlp"), picture(seed=1), segments)

    assert logits["rows"] != logits["helper"]
