"""Models whose images are read in a way of their own: engines of them, and what these and libmtmd's helper say."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from corosrv.contracts.jobs import Chunk, Image, Job, MultimodalText, Sampling
from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision.engine import VisionEngine
from tests.images.vision.encoders import N_EMBD, NobodyLeaves, image
from tests.support import gguf, projector

N_VOCAB = 259
BEFORE, AFTER = "Look: ", " what?"
WRITERS: dict[str, tuple[Callable[..., Path], Callable[..., Path]]] = {
    "gemma3": (gguf.write_llama, projector.write_gemma3),  # not causal
    "qwen2vl": (gguf.write_qwen2vl, projector.write_qwen2vl),  # M-RoPE
}

Files = tuple[str, str]


def picture_of(kind: str, seed: int = 1) -> Image:
    """An image of 4 rows that are not causal, or of 12 rows, which move their sequence by 4 positions."""
    return image(seed, 70, 60) if kind == "gemma3" else image(seed, 112, 84)


def write_files(kind: str, folder: Path) -> Files:
    write_model, write_projector = WRITERS[kind]
    model = write_model(folder / "model.gguf", context=1024)
    return str(model), str(write_projector(folder / "mmproj.gguf", N_EMBD))


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


def job(*parts: str | Image, **fields: object) -> Job:
    values = {"max_tokens": 8, "sampling": Sampling(temperature=0, n_probs=N_VOCAB)} | fields
    return Job((MultimodalText(parts),), **values)


def likelihoods(chunks: list[Chunk], number: int = 0) -> dict[int, float]:
    """Of all tokens, where the answer has this one."""
    tokens = [token for chunk in chunks for token in chunk.tokens]
    return {candidate.id: candidate.logprob for candidate in tokens[number].top}


def by_helper(files: Files, *parts: str | Image) -> dict[int, float]:
    """What libmtmd's own helper has behind a prompt: texts, with an image between each two. Waits for a process."""
    pictures = [part for part in parts if isinstance(part, Image)]
    texts = [part for part in parts if isinstance(part, str)]
    first, *others = [
        {"width": picture.width, "height": picture.height, "pixels": picture.pixels.hex(), "after": after}
        for picture, after in zip(pictures, texts[1:], strict=True)
    ]
    case = {"model": files[0], "mmproj": files[1], "before": texts[0], **first, "more": others, "segments": []}
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
