"""The real model with corosrv's matrix kernels, next to the same with libllama's alone."""

from collections.abc import Iterator

import pytest

from corosrv.models.engine import Engine
from corosrv.models.engine.libllama import cpu_identity
from tests.support.engines import answer, job, opened, packaged_model, read_all, text_of

pytestmark = pytest.mark.model

PROMPTS = [
    f"{subject} {verb}"
    for subject in ("The colour of the sea", "My grandmother", "A good book", "The first computer", "Water")
    for verb in ("is", "was", "can be", "has")
]


@pytest.fixture(scope="module")
def ours() -> Iterator[Engine]:
    flags = cpu_identity()
    if "avx512_vnni" not in flags or "amx_tile" in flags:
        pytest.skip("this processor has no use for the kernels: it lacks AVX512-VNNI, or has AMX")
    with opened(model=packaged_model(), slots=16, ctx=256, queue=64) as engine:
        yield engine


@pytest.fixture(scope="module")
def libllamas() -> Iterator[Engine]:
    with opened(model=packaged_model(), slots=16, ctx=256, queue=64, kernels="ggml") as engine:
        yield engine


def greedy_texts(engine: Engine) -> list[str]:
    readers = [engine.submit(job(prompt, max_tokens=16)) for prompt in PROMPTS]
    return [text_of(read_all(reader)) for reader in readers]


def test_all_weights_are_repacked_and_the_copy_is_as_large_as_they_are(ours):
    assert 0.97 * ours.info.size < ours.info.packed_bytes < 1.03 * ours.info.size
    assert f"{ours.info.packed_bytes / 1e6:.0f} MB" in ours.info.kernels


def test_libllama_can_be_left_alone(libllamas):
    assert (libllamas.info.own_kernels, libllamas.info.packed_bytes) == (0, 0)
    assert libllamas.info.kernels == "libllama's kernels alone"


def test_the_fingerprint_tells_the_kernels_apart(ours, libllamas):
    (our_card,), (their_card,) = ours.models(), libllamas.models()

    assert our_card.fingerprint == their_card.fingerprint + "k"


def test_most_greedy_texts_begin_as_libllamas_do(ours, libllamas):
    pairs = list(zip(greedy_texts(ours), greedy_texts(libllamas), strict=True))

    # Sums in another order flip some activations to the next of 255 steps. Where two words are nearly as good that
    # decides, as it does between libllama's own attention kernels; half of the texts part sooner or later.
    assert sum(a[:12] == b[:12] for a, b in pairs) >= 15, pairs


def test_greedy_texts_are_the_same_alone_and_among_others(ours):
    alone = [answer(ours, job(prompt, max_tokens=16)) for prompt in PROMPTS]

    assert greedy_texts(ours) == alone
