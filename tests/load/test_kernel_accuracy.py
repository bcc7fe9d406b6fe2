"""The kernels are as near to exact products as libllama's are: a short form of `tests/load/kernel_accuracy.py`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.load.kernel_accuracy import EXACT, TEXT, divergence, read
from tests.models.engine.test_kernels import WITH_KERNELS, sets
from tests.support.architectures import quantize
from tests.support.engines import packaged_model


def test_the_divergence_is_that_of_distributions_of_which_the_rest_is_one_event():
    exact = {1: math.log(0.5), 2: math.log(0.25)}
    other = {1: math.log(0.25), 2: math.log(0.5)}

    assert divergence([exact], [exact]) == pytest.approx(0)
    assert divergence([exact], [other]) == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))
    assert divergence([exact], [{1: math.log(0.5)}]) > 0  # the second is taken for as likely as the least one listed


@WITH_KERNELS
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)  # F32 is four times as much to read
def test_own_kernels_are_as_near_to_f32_as_libllamas(tmp_path: Path) -> None:
    models = quantize(Path(packaged_model()), tmp_path, ["F32", "Q4_K_M", "BF16"])
    text = TEXT.read_text("utf-8")[:1500]

    exact = read(models["F32"], "ggml", text, **EXACT)

    assert len(exact) > 300
    for name in ("Q4_K_M", "BF16"):
        theirs = divergence(exact, read(models[name], "ggml", text))
        assert theirs > 0
        for kernels in sets():
            assert divergence(exact, read(models[name], kernels, text)) < 1.05 * theirs, (name, kernels)
