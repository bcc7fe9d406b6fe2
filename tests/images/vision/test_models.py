"""The models of a server that take images."""

import pytest

from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision.models import VisionModels
from tests.images.vision.encoders import N_EMBD, NobodyLeaves, image
from tests.images.vision.readings import job
from tests.support import gguf, projector


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> ModelSettings:
    folder = tmp_path_factory.mktemp("models")
    model, mmproj = gguf.write_llama(folder / "tiny.gguf"), projector.write_mlp(folder / "mmproj.gguf", N_EMBD)
    return ModelSettings(model=str(model), mmproj=str(mmproj), slots=1, threads=1, encoder_threads=1, ctx=256)


def test_a_model_has_counters_while_its_encoder_runs(settings):
    models = VisionModels(NobodyLeaves)
    engine = models.make(settings)
    before = models.stats()
    engine.open()
    try:
        list(engine.submit(job("Look: ", image(), max_tokens=1)))
        stats = models.stats()
        families = {metric.name: metric for metric in models.collector().collect()}
    finally:
        engine.close()

    assert before == models.stats() == {}
    assert list(stats) == ["tiny"]
    assert stats["tiny"].transfers.n_rows == projector.N_PATCHES
    assert families["corosrv_transfer_rows"].samples[0].labels == {"model": "tiny"}


def test_the_last_engine_of_a_model_counts(settings, monkeypatch):
    models = VisionModels(NobodyLeaves)
    first, second = models.make(settings), models.make(settings)
    monkeypatch.setattr(type(first), "is_degraded", property(lambda engine: engine is first))

    assert models.state == "up"
    monkeypatch.setattr(type(first), "is_degraded", property(lambda engine: engine is second))
    assert models.state == "degraded"
