"""The same bits alone and among others: with COROSRV_DETERMINISTIC=1 for every weight format and architecture, and by
default where corosrv's own kernels compute all of a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from corosrv.contracts.jobs import Finish
from corosrv.models.engine import Engine
from tests.models.engine.test_kernels import WITH_KERNELS
from tests.support.architectures import ARCHITECTURES, quantize
from tests.support.engines import GREEDY, job, opened, packaged_model

FORMATS = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16")
FORMATS_OF_LLAMA = (*FORMATS, "Q4_1", "Q2_K", "Q3_K_M", "IQ4_XS")
SLOTS = 12
# Enough to see that threads share the work in any order; more cost time where others use the processor too.
ON_TWO_THREADS = ("llama-Q4_K_M", "mixture-F32", "mamba-Q4_1")

SHIP = "The ship left the harbour at dawn. "
WATCHED = (
    "Water is",
    SHIP + "On board",
    SHIP + "A list of the goods: " + "salt, wool, tea, oil, " * 6,  # libllama has other kernels for 64 rows and more
)
NEIGHBOURS = tuple(f"On day {day} the" for day in range(SLOTS - len(WATCHED)))

# A text, and of each of its tokens the number and the log-probability, also of the likeliest others.
Answer = tuple[str, tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...]]


def answer(engine: Engine, prompt: str, *, share: bool) -> Answer:
    work = replace(job(prompt, max_tokens=5, sampling=replace(GREEDY, n_probs=3)), share_prefix=share)
    with engine.submit(work) as reader:
        chunks = list(reader)
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert chunks[-1].finish in (Finish.STOP, Finish.LENGTH), chunks[-1]
    assert tokens
    assert all(math.isfinite(token.logprob) for token in tokens)
    return "".join(chunk.text for chunk in chunks), tuple(
        (token.id, token.logprob, tuple((other.id, other.logprob) for other in token.top)) for token in tokens
    )


def answers(engine: Engine, prompts: tuple[str, ...], *, share: bool) -> list[Answer]:
    """The answers to prompts that are sent at once."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(lambda prompt: answer(engine, prompt, share=share), prompts))


def check(model: Path, *, deterministic: bool = True, rounds: int = 1, **chosen: object) -> None:
    """Asks an engine alone, among few and many, and with prompts of which parts are known already.

    Which slot an answer gets, and what the slot holds by then, differs from round to round.
    """
    with opened(model=str(model), slots=SLOTS, ctx=512, deterministic=deterministic, **chosen) as engine:
        alone = [answer(engine, prompt, share=False) for prompt in WATCHED]

        few = answers(engine, WATCHED, share=False)
        many = [answers(engine, NEIGHBOURS + WATCHED, share=True)[-len(WATCHED) :] for _ in range(rounds)]
        known = answers(engine, WATCHED, share=True)

    assert few == alone
    assert many == [alone] * rounds
    assert known == alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def random_models(folder: Path) -> Mapping[str, Path]:
    """By architecture and format. A llama's rows are as long as K-quants need them."""
    models = {f"{name}-F32": write(folder / f"{name}.gguf") for name, write in ARCHITECTURES.items()}
    for name in ARCHITECTURES:
        formats = FORMATS_OF_LLAMA if name == "llama" else ("Q4_1",)
        written = quantize(models[f"{name}-F32"], folder, formats)
        models |= {f"{name}-{format}": path for format, path in written.items()}
    return models


@pytest.fixture(scope="module")
def smollm2_files(folder: Path) -> Iterator[Mapping[str, Path]]:
    files = quantize(Path(packaged_model()), folder, FORMATS)
    yield files
    for path in files.values():  # more than a gigabyte
        path.unlink()


@pytest.mark.parametrize(
    "name",
    [
        *(f"llama-{format}" for format in ("F32", *FORMATS_OF_LLAMA)),
        *(f"{name}-{format}" for name in ARCHITECTURES if name != "llama" for format in ("F32", "Q4_1")),
    ],
)
def test_an_answer_has_the_same_bits_alone_and_among_others(random_models, name):
    check(random_models[name], threads=2 if name in ON_TWO_THREADS else 1, rounds=4)


@pytest.mark.parametrize("name", ["llama-Q4_1", "llama-Q4_K_M", "lfm2-Q4_1", "gemma2-F32"])
def test_an_answer_has_the_same_bits_without_our_faster_kernels(random_models, name):
    check(random_models[name], threads=1, kernels="ggml")


@pytest.mark.model
@pytest.mark.parametrize("format", FORMATS)
def test_an_answer_of_the_real_model_has_the_same_bits_in_every_format(smollm2_files, format):
    check(smollm2_files[format], threads=1)


@WITH_KERNELS
@pytest.mark.model
@pytest.mark.parametrize("format", FORMATS)
def test_an_answer_has_the_same_bits_by_default_where_own_kernels_take_all(smollm2_files, format):
    check(smollm2_files[format], deterministic=False, threads=1)
