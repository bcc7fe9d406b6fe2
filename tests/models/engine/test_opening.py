"""Models that are loaded, and those that cannot be."""

import gc
import os
import time
from pathlib import Path
from typing import Any

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import State
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from tests.support.engines import TIMEOUT, answer, job, packaged_model
from tests.support.gguf import write_llama
from tests.support.waiting import wait_until


def write_gguf(path: Path, size: int) -> None:
    with open(packaged_model(), "rb") as model:
        path.write_bytes(model.read(size))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "not a GGUF file"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"not a model at all"), "not a GGUF file"),
        (lambda path: path.write_bytes(b"GGUF"), "cannot load"),
        (lambda path: path.write_bytes(b"GGUF" + b"\xff" * 1000), "cannot load"),
        (lambda path: path.write_bytes(b"GGUF\x03\0\0\0" + b"\0" * 16), "cannot load"),
    ],
    ids=["missing", "folder", "empty", "text", "magic", "garbage", "hollow"],
)
def test_what_is_no_model_is_refused_in_one_sentence(tmp_path, make, words):
    path = tmp_path / "model.gguf"
    make(path)

    assert words in failure(path)


@pytest.mark.model
@pytest.mark.parametrize("size", [100, 1_000_000, 50_000_000])
def test_half_a_model_is_refused_in_one_sentence(tmp_path, size):
    path = tmp_path / "model.gguf"
    write_gguf(path, size)

    assert "cannot load" in failure(path)


def failure(path: Path) -> str:
    """Returns what an engine with a bad model says, to whoever opened it and to every job."""
    engine = Engine(ModelSettings(model=str(path)))
    with pytest.raises(errors.ModelFailed) as failed:
        engine.open()
    with pytest.raises(errors.ModelFailed, match="could not be loaded"):
        engine.submit(job())
    engine.close()

    message = str(failed.value)
    assert engine.state is State.FAILED
    assert "model.gguf" in message
    assert "\n" not in message
    return message


@pytest.mark.model
def test_memory_that_is_not_there_is_refused_with_settings_that_would_do():
    engine = Engine(ModelSettings(model=packaged_model(), slots=256, ctx=8192, threads=1))
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available > 90e9:
        pytest.skip("this machine has the memory")

    with pytest.raises(errors.ModelFailed, match=r"48.3 GB.*would fit: set COROSRV_SLOTS=\d+ and COROSRV_CTX=\d+"):
        engine.open()


@pytest.mark.model
def test_slots_and_context_that_are_left_open_are_fitted_and_told(caplog: pytest.LogCaptureFixture):
    engine = Engine(ModelSettings(model=packaged_model(), memory_bytes=700_000_000, threads=1))

    with caplog.at_level("INFO", "corosrv.engine"):
        engine.open()

    slots, context = engine.card(None).slots, engine.info.context
    engine.close()
    assert slots == 4
    assert 1024 <= context < 4096
    assert f"{slots} slots of {context} tokens take" in caplog.text
    assert "where 32 slots of 4096 tokens would need" in caplog.text


@pytest.mark.parametrize(
    ("options", "is_told"),
    [({"ctx": 512}, True), ({"ctx": 256}, False), ({"ctx": 512, "rope_scaling": "linear"}, False)],
    ids=["longer", "as long", "scaled"],
)
def test_a_context_beyond_the_trained_one_is_told_with_both_numbers(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, options: dict[str, Any], is_told: bool
):
    path = write_llama(tmp_path / "tiny.gguf", context=256)

    with caplog.at_level("WARNING", "corosrv.engine"):
        engine = Engine(ModelSettings(model=str(path), slots=1, threads=1, **options))
        engine.open()
        engine.close()

    assert ("a context of 512 tokens was asked for, and tiny was trained for 256" in caplog.text) == is_told


@pytest.mark.model
def test_a_real_model_loads_while_greenlets_run():
    engine = Engine(ModelSettings(model=packaged_model(), slots=1, ctx=128, threads=1))
    loading = gevent.spawn(engine.open)

    longest, longest_computation = 0.0, 0.0
    gc.disable()  # a full collection goes over all that the tests of this process have made
    try:
        while not loading.ready():
            before, computed_before = time.monotonic(), time.thread_time()
            gevent.sleep(0.001)
            longest = max(longest, time.monotonic() - before)
            longest_computation = max(longest_computation, time.thread_time() - computed_before)
    finally:
        gc.enable()

    loading.get()
    assert answer(engine, job(max_tokens=1))
    engine.close()
    # The load itself takes half a second of a processor's time, and as many seconds as there is other work.
    assert longest_computation < 0.2
    assert longest < 10


@pytest.mark.model
def test_closing_while_a_model_loads_ends_the_load():
    engine = Engine(ModelSettings(model=packaged_model(), slots=1, ctx=128, threads=1))
    loading = gevent.spawn(engine.open)
    wait_until(lambda: engine.stats() is not None)

    engine.close()

    with pytest.raises(errors.ModelFailed, match="closed"):
        loading.get(timeout=TIMEOUT)
