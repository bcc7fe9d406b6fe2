"""Rows by the encoder process against libmtmd's own helper in one process: the same logits, bit for bit."""

import json
import struct
import subprocess
import sys
from typing import Any

import pytest

from corosrv.transfer.messages import RowSegment, TokenSegment, TransferMeta
from tests.encoder.pool import HandDriver, HandPool, geometry
from tests.support import gguf, projector

N_EMBD = 32


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("files")
    return str(gguf.write_llama(folder / "tiny.gguf")), str(projector.write_mlp(folder / "mlp.gguf", N_EMBD))


def segments_by_process(files: tuple[str, str], n_blocks: int, image: dict[str, Any]) -> list[list[int] | str]:
    """Token ids and rows, as the encoder process gives them through a pool of this size."""
    pool, driver = HandPool(geometry(n_blocks, block_rows=4, n_embd=N_EMBD)), HandDriver(*files)
    try:
        driver.greet(pool, N_EMBD)
        driver.answer()
        driver.open_image(1, image["width"], image["height"], bytes.fromhex(image["pixels"]))
        meta = driver.answer()
        assert isinstance(meta, TransferMeta)
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


def _content(segment: TokenSegment | RowSegment, rows: list[tuple[float, ...]]) -> list[int] | str:
    if isinstance(segment, TokenSegment):
        return list(segment.ids)
    taken, rows[: segment.n] = rows[: segment.n], []
    return b"".join(struct.pack(f"<{len(row)}f", *row) for row in taken).hex()


def run_helper(case: dict[str, Any]) -> dict[str, str]:
    """Both rows of logits. Waits."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.helper_logits"],
        input=json.dumps(case), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("n_blocks", "size"), [(1, (56, 56)), (3, (100, 30)), (64, (17, 90))])
def test_image_equals_in_process(files, n_blocks, size):
    width, height = size
    image = {"width": width, "height": height, "pixels": projector.random_pixels(width, height).hex()}

    segments = segments_by_process(files, n_blocks, image)
    logits = run_helper(
        {"model": files[0], "mmproj": files[1], **image, "before": "Look: ", "after": " what?", "segments": segments}
    )

    assert len(logits["rows"]) == 2 * 4 * 259
    assert logits["rows"] == logits["helper"]


def test_another_image_gives_other_logits(files):
    image = {"width": 56, "height": 56, "pixels": projector.random_pixels(seed=1).hex()}
    other = {**image, "pixels": projector.random_pixels(seed=2).hex()}

    segments = segments_by_process(files, 4, other)
    logits = run_helper(
        {"model": files[0], "mmproj": files[1], **image, "before": "Look: ", "after": " what?", "segments": segments}
    )

    assert logits["rows"] != logits["helper"]
