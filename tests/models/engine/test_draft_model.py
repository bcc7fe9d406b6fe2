"""A draft model that guesses for a real one: texts stay what they are, and come in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from corosrv.base.errors import ModelFailed, SettingsError
from corosrv.contracts.jobs import Chunk, Sampling
from corosrv.contracts.settings import ModelSettings
from corosrv.contracts.settings.model import models_of
from corosrv.models import plan
from corosrv.models.engine import Engine
from corosrv.models.fitting import gguf
from corosrv.models.fitting.model_file import check_model_files
from tests.support.engines import job, opened, packaged_model, read_all, text_of
from tests.support.gguf import write_bert, write_llama
from tests.support.padded_model import write_padded

SETTINGS = dict(slots=8, ctx=512, deterministic=True)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(temperature=0.8, seed=7),
    "hot": Sampling(temperature=1.3, top_k=0, seed=3),
}
PROMPTS = [f"{number}. Once upon a time, in a small village by the sea," for number in range(8)]


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that says what SmolLM2 does, at several times the cost."""
    return str(write_padded(Path(packaged_model()), tmp_path_factory.mktemp("models") / "padded.gguf", 4))


@pytest.fixture(scope="module")
def plain(slower: str) -> Iterator[Engine]:
    with opened(model=slower, **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def guessing(slower: str) -> Iterator[Engine]:
    with opened(model=slower, model_draft=packaged_model(), **SETTINGS) as engine:
        yield engine


def said(engine: Engine, sampling: Sampling, prompts: list[str]) -> list[str]:
    """Returns the texts of answers that run at once."""

    def answer(prompt: str) -> list[Chunk]:
        return read_all(engine.submit(job(prompt, sampling=sampling, max_tokens=40)))

    return [text_of(one.get(timeout=300)) for one in [gevent.spawn(answer, prompt) for prompt in prompts]]


@pytest.mark.model
def test_nearly_all_guesses_of_a_model_that_says_the_same_come_true_and_are_counted(guessing: Engine) -> None:
    before = guessing.stats()
    answers = [read_all(guessing.submit(job(prompt, max_tokens=100)))[-1] for prompt in PROMPTS[:4]]
    after = guessing.stats()

    assert before is not None
    assert after is not None
    n_guesses = after.draft_model_tokens - before.draft_model_tokens
    n_true = after.draft_model_accepted_tokens - before.draft_model_accepted_tokens
    assert n_guesses > 20
    assert n_true > 0.8 * n_guesses  # the target alone is deterministic: near ties are decided otherwise
    assert sum(last.accepted_tokens for last in answers) >= n_true
    assert after.steps - before.steps <= 400 - n_true  # fewer where guesses of other kinds come true as well


@pytest.mark.model
@pytest.mark.parametrize("n_streams", [1, 8])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_text_is_bit_for_bit_what_it_is_without_a_draft_model(
    name: str, n_streams: int, plain: Engine, guessing: Engine
) -> None:
    prompts = PROMPTS[:n_streams]

    assert said(guessing, SAMPLINGS[name], prompts) == said(plain, SAMPLINGS[name], prompts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf"))


def test_a_model_of_other_tokens_may_not_guess_and_the_message_names_both(tiny: str, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf", special=["<a>", "<b>"])
    third = write_llama(tmp_path / "third.gguf", special=["<a>", "<c>"])

    with pytest.raises(ModelFailed, match=r"third.gguf for other.gguf\): its tokens are others"):
        Engine(ModelSettings(model=str(other), model_draft=str(third), slots=1, ctx=64)).open()


def test_a_model_that_makes_vectors_may_not_guess(tiny: str, tmp_path: Path) -> None:
    bert = write_bert(tmp_path / "bert.gguf")

    with pytest.raises(ModelFailed, match=r"bert.gguf for tiny.gguf\): it makes vectors and no text"):
        Engine(ModelSettings(model=tiny, model_draft=str(bert), slots=1, ctx=64)).open()


def test_the_flaws_of_a_draft_models_file_are_told_before_anything_is_loaded(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<!doctype html>")
    missing = ModelSettings(model=tiny, model_draft=str(tmp_path / "none.gguf"))

    with pytest.raises(SettingsError, match=r"draft model .*none.gguf does not exist: .* with --model-draft"):
        check_model_files(missing)
    with pytest.raises(SettingsError, match=r"draft model .*page.gguf is a web page"):
        check_model_files(ModelSettings(model=tiny, model_draft=str(tmp_path / "page.gguf")))


def test_each_of_several_models_has_a_draft_model_of_its_own(tiny: str) -> None:
    first, second = models_of({"model": f"a={tiny}?draft={tiny},b={tiny}"})

    assert (first.model_draft, first.drafted_rows) == (tiny, 16)
    assert (second.model_draft, second.drafted_rows) == ("", 0)


def test_a_recording_and_a_synthetic_model_have_no_draft_model(tiny: str) -> None:
    with pytest.raises(SettingsError, match="MODEL_DRAFT must be empty where COROSRV_RECORD is set"):
        ModelSettings(model=tiny, model_draft=tiny, record="engine.rec")
    with pytest.raises(SettingsError, match="MODEL_DRAFT must be empty where the model is synthetic"):
        ModelSettings(model="synthetic:", model_draft=tiny)


def test_the_memory_of_a_draft_model_counts(tiny: str) -> None:
    facts = gguf.read(tiny)
    settings = ModelSettings(model=tiny, slots=4, ctx=256)
    drafting = ModelSettings(model=tiny, model_draft=tiny, slots=4, ctx=256)

    assert plan.estimate(drafting, facts) == 2 * plan.estimate(settings, facts)
