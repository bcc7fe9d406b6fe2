"""Projector files, good and bad, tried in a process that may end of them."""

import functools
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from corosrv.base.errors import LoadError
from corosrv.images.encoder.check import ProjectorReport, check_projector
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL
from tests.support import gguf, projector
from tests.support.architectures import write_mamba

N_EMBD = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(gguf.write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def write_text(path: Path) -> Path:
    path.write_text("GIF89a, or whatever else is no GGUF")
    return path


def write_part(path: Path, keep: Callable[[int], int]) -> Path:
    """A projector of which only so many bytes arrived."""
    content = projector.write_mlp(path, N_EMBD).read_bytes()
    path.write_bytes(content[: keep(len(content))])
    return path


def write_not_finite(path: Path) -> Path:
    """A projector whose last tensor, a bias, begins with a number that is none."""
    content = bytearray(projector.write_mlp(path, N_EMBD).read_bytes())
    content[-4 * N_EMBD : -4 * N_EMBD + 4] = b"\x00\x00\xc0\x7f"
    path.write_bytes(content)
    return path


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no GGUF": (write_text, "cannot be opened as a GGUF file"),
    "cut in its head": (functools.partial(write_part, keep=lambda n: 300), "cannot be opened as a GGUF file"),
    "cut in the middle": (functools.partial(write_part, keep=lambda n: n // 2), "was cut"),
    "cut at its end": (functools.partial(write_part, keep=lambda n: n - 4), "was cut"),
    "a text model": (gguf.write_llama, "Failed to load CLIP model"),
    "another width": (functools.partial(projector.write_mlp, n_embd=64), "(n_embd = 64)"),
    "audio alone": (functools.partial(projector.write_audio, n_embd=N_EMBD), "takes no images"),
    "another family": (functools.partial(projector.write_idefics3, n_embd=N_EMBD), "vocabulary lacks a token"),
    "for M-RoPE": (
        functools.partial(projector.write_qwen2vl, n_embd=N_EMBD),
        "is for models with M-RoPE, and the model",
    ),
    "a need that nobody meets": (functools.partial(projector.write_gemma3, n_embd=N_EMBD), "that is not causal"),
    "not finite": (write_not_finite, "not finite: the file is damaged"),
    "no mm.2": (
        functools.partial(projector.write_mlp, n_embd=N_EMBD, lacks=["mm.2.weight", "mm.2.bias"]),
        "ended by signal 11 (SIGSEGV) while it opened the projector",
    ),
    "numbers that libmtmd aborts on": (
        functools.partial(projector.write_mlp, n_embd=N_EMBD, **{"attention.head_count": 7}),
        "ended by signal 6 (SIGABRT) while it opened the projector",
    ),
}


@pytest.mark.parametrize(("write", "words"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_cannot_serve_is_refused_in_words(model, tmp_path, write, words):
    path = tmp_path / "bad.gguf"
    write(path)

    with pytest.raises(LoadError) as refused:
        check_projector(model, str(path), 1)

    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_rows_that_are_not_causal_are_refused_beside_a_model_without_attention(tmp_path):
    model, mmproj = write_mamba(tmp_path / "mamba.gguf"), projector.write_gemma3(tmp_path / "p.gguf", n_embd=64)

    with pytest.raises(
        LoadError, match=r"p.gguf \(gemma3\) needs attention that is not causal, .*mamba.gguf is recurrent"
    ):
        check_projector(str(model), str(mmproj), 1, [MROPE, NON_CAUSAL])


def test_a_good_file_is_described(model, tmp_path):
    path = projector.write_gemma3(tmp_path / "good.gguf", N_EMBD)

    report = check_projector(model, str(path), 1, [NON_CAUSAL])

    assert 0 < report.seconds < math.inf
    assert report == ProjectorReport(
        kind="gemma3", n_embd=N_EMBD, is_non_causal=True, n_rows=4, seconds=report.seconds
    )  # fmt: skip
