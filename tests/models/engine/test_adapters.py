"""LoRA adapters: loaded with the model, chosen by a job or for all of them."""

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from tests.support.engines import TIMEOUT, answer, job, opened, packaged_model, read_all
from tests.support.gguf import write, write_lora
from tests.support.vectors import cosine, embed

pytestmark = pytest.mark.model

# Weights of SmolLM2, with their inputs and outputs.
WEIGHTS = {f"blk.{layer}.attn_output.weight": (576, 576) for layer in (0, 7, 21)} | {"blk.3.ffn_up.weight": (576, 1536)}
STORY = job("Once upon a time there was a little", max_tokens=12)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [str(write_lora(folder / f"{name}.gguf", WEIGHTS, seed)) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(scope="module")
def engine(paths):
    with opened(model=packaged_model(), slots=4, ctx=512, lora=f"{paths[0]}:0,{paths[1]}:0") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain():
    """The story without adapters."""
    with opened(model=packaged_model(), slots=4, ctx=512) as engine:
        return answer(engine, STORY)


def told(engine: Engine, *lora: tuple[int, float]) -> str:
    return answer(engine, job("Once upon a time there was a little", max_tokens=12, lora=lora))


def test_a_job_gets_the_adapters_that_it_asks_for(engine, plain):
    texts = [told(engine), told(engine, (0, 1.0)), told(engine, (1, 1.0)), told(engine, (0, 1.0), (1, 1.0))]

    assert texts[0] == plain
    assert len(set(texts)) == 4
    assert told(engine, (0, 0.0)) == plain


def test_who_does_not_say_gets_what_is_set_for_all(engine, plain):
    with_adapter = told(engine, (1, 1.0))

    engine.set_adapters({1: 1.0})
    changed, scales = answer(engine, STORY), [adapter.scale for adapter in engine.adapters()]
    engine.set_adapters({0: 0.0})

    assert (changed, scales) == (with_adapter, [0.0, 1.0])
    assert answer(engine, STORY) == plain


def test_texts_with_different_adapters_at_one_time_are_those_of_each_alone(engine, plain):
    choices: list[tuple[tuple[int, float], ...]] = [(), ((0, 1.0),), ((1, 1.0),), ((1, 0.5),)]
    alone = [told(engine, *chosen) for chosen in choices]

    together = [gevent.spawn(told, engine, *chosen) for chosen in choices for _ in range(2)]
    gevent.joinall(together, timeout=TIMEOUT, raise_error=True)

    assert [telling.value for telling in together] == [text for text in alone for _ in range(2)]


def test_prefixes_are_not_shared_across_adapters(engine):
    long = "The river runs past the old mill, and the miller counts the sacks that go down to the town by boat. " * 3

    def cached(*lora: tuple[int, float]) -> int:
        return read_all(engine.submit(job(long, max_tokens=1, lora=lora)))[-1].cached_tokens

    assert [cached((0, 0.7)), cached(), cached((0, 0.8))] == [0, 0, 0]
    assert cached((0, 0.7)) > 16


def test_own_kernels_compute_adapters_as_libllama_does(paths):
    """Vectors, because they are close where texts go apart with the first rounding that differs."""
    vectors = []
    for chosen in ({"kernels": "auto", "lora": paths[0]}, {"kernels": "ggml", "lora": paths[0]}, {"kernels": "auto"}):
        with opened(model=packaged_model(), ctx=256, **chosen) as engine:
            vectors += embed(engine, "The river runs past the old mill")
    ours, theirs, without = vectors

    assert cosine(ours, theirs) > 0.98
    assert cosine(ours, without) < 0.9


@pytest.mark.parametrize(("lora", "words"), [(((2, 1.0),), "from 0 to 1"), (((0, float("nan")),), "finite")])
def test_adapters_that_are_not_there_are_refused(engine, lora, words):
    with pytest.raises(errors.Refused, match=words) as refused:
        engine.submit(job(lora=lora))

    assert refused.value.param == "lora"
    with pytest.raises(errors.Refused, match=words):
        engine.set_adapters(dict(lora))


def test_adapters_are_listed_by_file_name(engine):
    assert [(adapter.id, adapter.name) for adapter in engine.adapters()] == [(0, "one.gguf"), (1, "two.gguf")]


@pytest.mark.parametrize("has_file", [False, True])
def test_a_file_that_is_no_adapter_stops_the_start_by_its_name(tmp_path, has_file):
    path = tmp_path / "wrong.gguf"
    if has_file:
        write(path, {"general.type": "model"}, {})

    with pytest.raises(errors.ModelFailed, match=r"wrong\.gguf"), opened(model=packaged_model(), lora=str(path)):
        pass


def test_a_scale_stands_behind_the_last_colon():
    settings = ModelSettings(model="synthetic:", lora="a.gguf:0.5, b:c.gguf ,d.gguf:-1")

    assert settings.adapters == (("a.gguf", 0.5), ("b:c.gguf", 1.0), ("d.gguf", -1.0))
    with pytest.raises(errors.SettingsError, match="COROSRV_LORA"):
        ModelSettings(model="synthetic:", lora="a.gguf:nan")
