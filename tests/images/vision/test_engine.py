"""A model with a projector as the pool has it: opened, asked, drained and closed."""

import os
import subprocess
import sys

import gevent
import pytest

from corosrv.base.errors import ModelFailed, PromptTooLong, ShuttingDown
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs import Job, Messages, MultimodalText, Sampling, Text
from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision.engine import VisionEngine
from tests.images.vision.encoders import N_EMBD, NobodyLeaves, image
from tests.support import faulty_images, gguf, projector
from tests.support.children import children
from tests.support.engines import read_all, text_of
from tests.support.faulty_images import SLOW
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    model, mmproj = gguf.write_llama(folder / "tiny.gguf"), projector.write_mlp(folder / "mmproj.gguf", N_EMBD)
    return str(model), str(mmproj)


@pytest.fixture
def make(files):
    engines = []

    def make(**changes) -> VisionEngine:
        model, mmproj = files
        values = {"model": model, "mmproj": mmproj, "slots": 2, "threads": 1, "encoder_threads": 1, "ctx": 256}
        engines.append(VisionEngine(ModelSettings(**(values | changes)), NobodyLeaves))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make) -> VisionEngine:
    engine = make()
    engine.open()
    return engine


def job(*parts, **fields) -> Job:
    return Job((MultimodalText(parts),), max_tokens=4, sampling=Sampling(temperature=0), **fields)


def encoder_pids() -> set[int]:
    return children("corosrv.images.encoder")


def test_rows_of_images_count_as_tokens_of_the_prompt_and_are_cached(engine):
    first = read_all(engine.submit(job("Look: ", image(), " What is it?")))
    second = read_all(engine.submit(job("Look: ", image(), " What is it?")))

    n_texts = engine.vocabulary(None).count(MultimodalText(("Look: ", image(), " What is it?"))) - projector.N_PATCHES
    assert first[-1].prompt_tokens == n_texts + projector.N_PATCHES
    assert second[-1].cached_tokens >= projector.N_PATCHES
    assert text_of(first) == text_of(second)


def test_several_prompts_of_a_job_have_their_own_images(engine):
    prompts = MultimodalText(("One: ", image(1))), Text("No image."), MultimodalText(("Two: ", image(2)))
    together = Job(prompts, max_tokens=4, sampling=Sampling(temperature=0))

    chunks = read_all(engine.submit(together))

    alone = [
        text_of(read_all(engine.submit(Job((prompt,), max_tokens=4, sampling=Sampling(temperature=0)))))
        for prompt in prompts
    ]
    assert [text_of(chunks, index) for index in range(3)] == alone


def test_a_text_that_is_too_long_is_refused_before_its_images_are_encoded(engine):
    with pytest.raises(PromptTooLong):
        engine.submit(job("x" * 300, image()))

    assert engine.encoder_stats().transfers.n_rounds == 0


def test_images_that_do_not_fit_are_refused(engine):
    with pytest.raises(PromptTooLong):
        engine.submit(job(*[image(seed) for seed in range(17)]))


def test_prompts_are_shown_with_markers_in_place_of_images(engine):
    vocabulary = engine.vocabulary(None)
    prompt = Messages(({"role": "user", "content": ("What is ", image(), "?")},))

    assert "<__media__>" in vocabulary.render(prompt)
    assert vocabulary.spell(vocabulary.encode(prompt)).count(b"<__media__>") == 1


def test_the_model_says_that_it_takes_images(engine):
    card = engine.card(None)

    assert "images" in card.capabilities
    assert card.row_width == N_EMBD


def test_a_thread_can_close_what_the_hub_has_opened(engine):
    (pid,) = encoder_pids()

    call_in_thread(engine.close)

    assert not os.path.exists(f"/proc/{pid}")
    assert engine.encoder_stats() is None


def test_a_model_that_is_closed_while_its_encoder_starts_leaves_none(make):
    engine = make()
    opening = gevent.spawn(engine.open)
    wait_until(encoder_pids)

    call_in_thread(engine.close)

    with pytest.raises(ModelFailed):
        opening.get(timeout=30)
    assert not encoder_pids()


def test_a_projector_that_cannot_be_used_is_told_without_its_folder(make, tmp_path):
    engine = make(mmproj=str(projector.write_mlp(tmp_path / "wide.gguf", 2 * N_EMBD)))

    with pytest.raises(ModelFailed, match=r"wide\.gguf cannot be used with this model") as failure:
        engine.open()

    assert str(tmp_path) not in str(failure.value)
    assert not encoder_pids()


def test_who_waits_for_an_image_hears_of_the_end(make, tmp_path, monkeypatch):
    for name, value in faulty_images.environ(tmp_path / "gate").items():
        monkeypatch.setenv(name, value)
    engine = make()
    engine.open()
    waiting = gevent.spawn(engine.submit, job("Look: ", image(width=SLOW)))
    wait_until(lambda: engine.encoder_stats().transfers.n_active == 1)

    engine.drain("the server is shutting down")

    with pytest.raises(ShuttingDown, match="the server is shutting down"):
        waiting.get(timeout=30)


def test_a_server_of_texts_imports_nothing_of_images():
    code = "import sys, corosrv.serving.models; print(*(name for name in sys.modules if name.startswith('corosrv.')))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout.decode()

    packages = {name.split(".")[1] for name in loaded.split()}
    assert "serving" in packages
    assert not packages & {"encoder", "transfer", "vision"}
