"""The real model with corosrv's matrix kernels, next to the same with libllama's alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corosrv.models.engine import Engine
from corosrv.models.engine.libllama import cpu_identity
from corosrv.models.engine.trial import difference, draw
from tests.models.engine.test_probe import options
from tests.support.architectures import ARCHITECTURES, quantize
from tests.support.engines import answer, job, opened, packaged_model, read_all, text_of

pytestmark = pytest.mark.model

PROMPTS = [
    f"{subject} {verb}"
    for subject in ("The colour of the sea", "My grandmother", "A good book", "The first computer", "Water")
    for verb in ("is", "was", "can be", "has")
]


FORMATS = ["Q4_0", "Q4_K_M", "Q6_K", "F16", "BF16"]


def sets() -> list[str]:
    """The sets of kernels that this processor has of its own."""
    flags = cpu_identity()
    if "amx_tile" in flags or "avx2" not in flags:
        return []
    narrower = {"avx2": "avx512_vnni" in flags or "avx_vnni" in flags, "avx-vnni": "avx_vnni" in flags}
    return ["auto", *(name for name, can_choose in narrower.items() if can_choose)]


WITH_KERNELS = pytest.mark.skipif(not sets(), reason="no use for the kernels: the processor lacks AVX2, or has AMX")


@pytest.fixture(scope="module", params=[pytest.param("auto", marks=WITH_KERNELS)] if not sets() else sets())
def ours(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with opened(model=packaged_model(), slots=16, ctx=256, queue=64, kernels=request.param) as engine:
        yield engine


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packaged model in other formats. Rows of 576 numbers become Q5_0 or Q8_0 where a format is one of 256."""
    return quantize(Path(packaged_model()), tmp_path_factory.mktemp("formats"), FORMATS)


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


@pytest.mark.slow
@pytest.mark.timeout(600)  # the formats are written first
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kernels", sets() or [pytest.param("auto", marks=WITH_KERNELS)])
def test_other_formats_are_packed_and_answer_as_with_libllama(files, name, kernels):
    """Also those that libllama would rearrange, and then keep for its own kernels."""
    own = options(files[name], kernels=kernels, copy_bytes=1 << 40)

    answer, has_own_kernels = draw(own)

    assert has_own_kernels
    assert difference(answer, draw(replace(own, kernels="ggml"))[0]) == ""
    with opened(model=str(files[name]), slots=2, ctx=128, kernels=kernels) as engine:
        assert 0.97 * engine.info.size < engine.info.packed_bytes < 1.06 * engine.info.size


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "BF16", "MXFP4_MOE"])
@pytest.mark.parametrize("architecture", ["mixture", "gpt-oss"])
@pytest.mark.parametrize("kernels", sets() or [pytest.param("auto", marks=WITH_KERNELS)])
def test_the_experts_of_a_mixture_are_packed_and_answer_as_with_libllama(tmp_path, architecture, name, kernels):
    source = ARCHITECTURES[architecture](tmp_path / "model.gguf")
    model = quantize(source, tmp_path, [name])[name]
    # Of so small a model a part has no whole groups of rows: libllama would rearrange MXFP4, and keep it for itself.
    is_kept = name == "MXFP4_MOE"
    own = options(model, kernels=kernels, copy_bytes=1 << 40, deterministic=is_kept)

    answer, has_own_kernels = draw(own)

    assert has_own_kernels
    assert difference(answer, draw(replace(own, kernels="ggml"))[0]) == ""
    with opened(model=str(model), slots=2, ctx=128, kernels=kernels, deterministic=is_kept) as engine:
        assert 0.65 * engine.info.size < engine.info.packed_bytes < 1.06 * engine.info.size


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
