"""The probe: a libllama that dies is found out in a child process, once."""

import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from corosrv.base.errors import ModelFailed
from corosrv.contracts.jobs import Candidate, TokenInfo
from corosrv.models.engine import libllama, probe, trial, verdicts
from corosrv.models.engine.binding import Options
from corosrv.models.engine.probe import Verdict
from tests.support.engines import packaged_model
from tests.support.gguf import write_llama

pytestmark = pytest.mark.model

# Stands before libllama in the child: dies in a batch as a badly compiled one would, and counts the processes.
SHIM = r"""
#include <dlfcn.h>
#include <llama.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <fstream>

static bool is_fast, is_own;

template <typename Function>
static Function real(const char* name) {
  void* library = dlopen(std::getenv("SHIM_LIBLLAMA"), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

extern "C" llama_model* llama_model_load_from_file(const char* path, llama_model_params params) {
  std::ofstream(std::getenv("SHIM_LOG"), std::ios::app) << getpid() << "\n";
  is_fast = params.use_extra_bufts;
  return real<decltype(&llama_model_load_from_file)>("llama_model_load_from_file")(path, params);
}

extern "C" llama_context* llama_init_from_model(llama_model* model, llama_context_params params) {
  // The kernels are the first member of what watches the nodes (SlotPages).
  is_own = params.cb_eval_user_data != nullptr && *static_cast<void**>(params.cb_eval_user_data) != nullptr;
  return real<decltype(&llama_init_from_model)>("llama_init_from_model")(model, params);
}

extern "C" float* llama_get_logits_ith(llama_context* context, int32_t row) {
  float* logits = real<decltype(&llama_get_logits_ith)>("llama_get_logits_ith")(context, row);
  if (std::getenv("SHIM_MOOD")[0] == 'w' && is_own) logits[1000] = 1000.0F;
  return logits;
}

extern "C" int32_t llama_decode(llama_context* context, llama_batch batch) {
  const char mood = std::getenv("SHIM_MOOD")[0];
  if (mood == 'k') std::raise(SIGKILL);
  if (mood == 'a' || (mood == 'f' && is_fast) || (mood == 'o' && is_own)) std::raise(SIGILL);
  return real<decltype(&llama_decode)>("llama_decode")(context, batch);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    compiler = shutil.which("c++") or pytest.skip("there is no C++ compiler")
    headers = libllama.headers() or pytest.skip("there is no llama.h")
    folder = tmp_path_factory.mktemp("shim")
    source, library = folder / "shim.cpp", folder / "shim.so"
    source.write_text(SHIM)
    command = [
        compiler,
        "-std=c++17",
        "-shared",
        "-fPIC",
        f"-I{headers[0].parent}",
        str(source),
        "-o",
        str(library),
        "-ldl",
    ]
    subprocess.run(command, check=True, timeout=60)
    return library


@pytest.fixture
def libllama_that(shim, monkeypatch, tmp_path):
    """Gives children a libllama that dies `always`, when loaded `fast`, with `own` kernels, or `never`.

    Or one that is `killed`, or `wrong` with own kernels. Returns the log of its loads.
    """

    def make(mood: str) -> Path:
        log = tmp_path / "loads"
        log.touch()
        monkeypatch.setenv("LD_PRELOAD", str(shim))
        monkeypatch.setenv("SHIM_LIBLLAMA", str(libllama.folder() / "libllama.so"))
        monkeypatch.setenv("SHIM_LOG", str(log))
        monkeypatch.setenv("SHIM_MOOD", mood)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return log

    return make


def n_children(log: Path) -> int:
    return len(set(log.read_text().splitlines()))


def options(model: Path | str = "", **more) -> Options:
    """Small options of a model, the packaged one where none is named."""
    return Options(
        model=str(model or packaged_model()), synthetic=None, queue=4, tasks_of_owner=0, step_ms=60.0,
        reader_bytes=65_536, **{"context": 128, "slots": 2, "threads": 1, **more},
    )  # fmt: skip


def needs_own_kernels() -> None:
    engine = trial.NativeEngine(options())
    trial.wait_readable(engine.fd)
    has_own = engine.info().own_kernels
    engine.close()
    if not has_own:
        pytest.skip("corosrv has no kernels of its own for this processor")


def test_one_that_lives_is_loaded_as_it_wants(libllama_that):
    log = libllama_that("never")

    assert probe.verdict(options()) is Verdict.FAST
    assert n_children(log) == 1


def test_one_that_dies_is_loaded_safely_and_said_to_need_a_rebuild(libllama_that, caplog):
    log = libllama_that("fast")

    with caplog.at_level(logging.WARNING):
        found = probe.verdict(options())

    assert found is Verdict.SAFE
    assert n_children(log) == 3, "with own kernels, without them, and without repacked weights"
    (record,) = caplog.records
    assert "SIGILL" in record.getMessage()
    assert "pip install --force-reinstall" in record.getMessage()


@pytest.mark.parametrize("mood", ["never", "fast"])
def test_a_verdict_is_remembered(libllama_that, mood):
    log = libllama_that(mood)
    first = probe.verdict(options())
    before = n_children(log)

    assert probe.verdict(options()) is first
    assert n_children(log) == before


def test_one_that_dies_either_way_fails_the_model(libllama_that):
    libllama_that("always")

    with pytest.raises(ModelFailed, match=r"SIGILL.*rebuild it: "):
        probe.verdict(options())


def test_a_failure_is_not_remembered(libllama_that):
    log = libllama_that("always")
    with pytest.raises(ModelFailed):
        probe.verdict(options())

    libllama_that("never")

    assert probe.verdict(options()) is Verdict.FAST
    assert n_children(log) == 4


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"x": "odd"}'])
def test_a_spoilt_memory_costs_one_more_probe(libllama_that, tmp_path, content):
    log = libllama_that("never")
    memory = tmp_path / "corosrv" / "probe.json"
    memory.parent.mkdir()
    memory.write_text(content)

    assert probe.verdict(options()) is Verdict.FAST
    assert n_children(log) == 1


def test_a_memory_that_cannot_be_written_is_no_failure(libllama_that, tmp_path):
    libllama_that("never")
    (tmp_path / "corosrv").write_text("a file where the folder should be")

    assert probe.verdict(options()) is Verdict.FAST


def test_a_model_that_libllama_refuses_in_the_child_is_not_loaded_by_the_server(libllama_that, tmp_path):
    libllama_that("never")
    model = tmp_path / "bad.gguf"
    model.write_bytes(b"GGUF")

    with pytest.raises(ModelFailed, match=r"^libllama cannot load 'bad\.gguf'"):
        probe.verdict(options(model))


def test_the_shim_dies_as_a_processor_would(libllama_that, monkeypatch):
    libllama_that("always")

    assert probe._try(options(kernels="ggml", safe_load=True)).death == signal.Signals.SIGILL.name
    assert os.environ["SHIM_MOOD"] == "always"


def test_a_child_that_takes_too_long_is_tried_again(libllama_that, monkeypatch):
    log = libllama_that("never")
    run, waits = probe.run_process, iter([0.001, 100.0])
    monkeypatch.setattr(probe, "run_process", lambda command, timeout, *rest: run(command, next(waits), *rest))

    assert probe.verdict(options()) is Verdict.FAST
    assert next(waits, None) is None, "both were asked for"
    assert n_children(log) == 1


def test_a_time_out_is_no_crash_and_is_not_remembered(libllama_that, monkeypatch, tmp_path, caplog):
    libllama_that("never")
    monkeypatch.setattr(probe, "TIMEOUT", 0.001)
    monkeypatch.setattr(probe, "BYTES_PER_SECOND", 10**12)

    with caplog.at_level(logging.WARNING):
        assert probe.verdict(options()) is Verdict.FAST

    assert "did not decode" in caplog.text
    assert not (tmp_path / "corosrv" / "probe.json").exists()


def test_own_kernels_that_compute_something_else_are_turned_off_by_name(libllama_that, caplog):
    needs_own_kernels()
    log = libllama_that("wrong")

    with caplog.at_level(logging.WARNING):
        assert probe.verdict(options()) is Verdict.GGML

    assert "corosrv's own kernels compute something else than libllama's (token 1 is " in caplog.text
    assert n_children(log) == 1
    assert probe.verdict(options(kernels="ggml")) is Verdict.FAST


def test_own_kernels_that_die_are_turned_off_by_name(libllama_that, caplog):
    needs_own_kernels()
    libllama_that("own")

    with caplog.at_level(logging.WARNING):
        assert probe.verdict(options()) is Verdict.GGML

    assert "corosrv's own kernels died with SIGILL" in caplog.text


def test_a_child_that_cannot_try_ends_the_start_with_its_words(monkeypatch, tmp_path):
    """As where the extension was built for another libllama: neither healthy, nor a fault of kernels."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('no msgspec for this machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(ModelFailed, match="ended with status 1: ImportError: no msgspec for this machine"):
        probe.verdict(options())

    assert not (tmp_path / "corosrv").exists()


def test_a_copy_of_a_model_is_not_tried_again(libllama_that, tmp_path):
    log = libllama_that("never")
    copy = tmp_path / "copy.gguf"
    copy.symlink_to(packaged_model())
    probe.verdict(options())

    probe.verdict(options(copy))

    assert n_children(log) == 1


def key(path: Path, **more) -> str | None:
    return probe._key(options(path, **more))


def change(path: Path, at: int) -> None:
    """Writes another byte at this place, and sets the times back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_head_is_hashed_up_to_the_last_tensor_and_no_further(tmp_path):
    """However far behind a long vocabulary a key stands: libllama aborts over a wrong count of layers there."""
    model = write_llama(tmp_path / "model.gguf", special=["x" * 3_000_000])
    content = model.read_bytes()
    end = content.rindex(b".weight") + len(".weight") + 4 + 8 + 4 + 8  # of a norm: its extent, kind and offset
    hashes = [verdicts.identity(str(model)).split()[-1]]

    for place in (end - 1, end):
        change(model, place)
        hashes.append(verdicts.identity(str(model)).split()[-1])

    assert hashes[0] != hashes[1] == hashes[2]


def test_weights_that_were_written_in_place_make_another_model(tmp_path):
    model = write_llama(tmp_path / "model.gguf")
    before = key(model)

    change(model, model.stat().st_size - 1)

    assert None is not before != key(model)


def test_a_change_of_any_part_of_a_split_model_makes_another_model(tmp_path):
    parts = [write_llama(tmp_path / f"model-{number:05d}-of-00002.gguf") for number in (1, 2)]
    before = key(parts[0])

    change(parts[1], 100)

    assert None is not before != key(parts[0])


def test_a_change_of_an_adapter_makes_another_model(tmp_path):
    model, adapter = write_llama(tmp_path / "model.gguf"), write_llama(tmp_path / "adapter.gguf")
    before = key(model, adapters=(str(adapter),))

    change(adapter, 100)

    assert None is not before != key(model, adapters=(str(adapter),))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [({"context": 512}, False), ({"slots": 3}, False), ({"batch": 64}, False), ({"pooling": "mean"}, False),
     ({"threads": 7}, True), ({"copy_bytes": 12}, True), ({"cache_bytes": 1}, True)],
)  # fmt: skip
def test_a_verdict_is_for_the_sizes_that_the_engine_has(tmp_path, other, is_same):
    model = write_llama(tmp_path / "model.gguf")

    assert (key(model) == key(model, **other)) is is_same


def test_a_file_that_ends_within_its_head_has_no_verdict(tmp_path):
    model = write_llama(tmp_path / "model.gguf")
    content = model.read_bytes()
    model.write_bytes(content[: content.index(b"tokenizer.ggml.scores")])

    assert key(model) is None


def test_a_file_that_aborts_the_child_is_not_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = write_llama(tmp_path / "model.gguf", **{"llama.block_count": 600})

    with pytest.raises(ModelFailed, match=r"SIGABRT of this model file, .* the file is damaged"):
        probe.verdict(options(model))


def test_a_vocabulary_that_splits_no_text_is_refused_in_words(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = write_llama(tmp_path / "model.gguf")
    model.write_bytes(model.read_bytes().replace(b"<0x", b"<0y"))

    with pytest.raises(ModelFailed, match="cannot split a text by the vocabulary of this model file"):
        probe.verdict(options(model))


def test_a_child_that_was_killed_tells_nothing_of_libllama(libllama_that, tmp_path, caplog):
    """As the kernel kills one where memory runs out."""
    libllama_that("killed")

    with caplog.at_level(logging.WARNING):
        assert probe.verdict(options()) is Verdict.FAST

    assert "was killed, perhaps for want of memory; loading without that trial" in caplog.text
    assert not (tmp_path / "corosrv" / "probe.json").exists()


def test_no_more_verdicts_are_remembered_than_a_few(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verdicts, "MAX_VERDICTS", 2)
    stored = verdicts.StoredVerdicts("probe.json")
    for name in "abc":
        stored.store(name, Verdict.SAFE)

    kept = [stored.get(name, Verdict) for name in "abc"]

    assert kept == [None, Verdict.SAFE, Verdict.SAFE]


def drawn(*ids: int, gap: float = 5.0) -> trial.TrialAnswer:
    """A text of tokens; in the place of each, token 7 is `gap` nats less likely."""
    return trial.TrialAnswer([TokenInfo(id, b"x", 0.0, (Candidate(7, b"y", -gap),)) for id in ids])


@pytest.mark.parametrize(
    ("own", "reference", "words"),
    [
        (drawn(1, 2, 3), drawn(1, 2, 3), ""),
        (drawn(1, 7, 9), drawn(1, 2, 3, gap=0.5), ""),
        (drawn(1, 7, 3), drawn(1, 2, 3, gap=2.0), "token 2 is 'x' and not 'x'"),
        (drawn(1, 8, 3), drawn(1, 2, 3, gap=0.5), "token 2 is 'x' and not 'x'"),
        (drawn(1), drawn(1, 2), "1 tokens and not 2"),
        (trial.TrialAnswer(vector=[0.6, 0.8]), trial.TrialAnswer(vector=[0.61, 0.79]), ""),
        (
            trial.TrialAnswer(vector=[0.8, 0.6]),
            trial.TrialAnswer(vector=[0.6, 0.8]),
            "vectors lie 0.28 of their length apart",
        ),
        (
            trial.TrialAnswer(vector=[float("nan"), 0.8]),
            trial.TrialAnswer(vector=[0.6, 0.8]),
            "vectors lie nan of their length",
        ),
    ],
)
def test_what_rounding_explains_is_no_difference(own, reference, words):
    found = trial.difference(own, reference)

    assert found.startswith(words)
    assert bool(found) == bool(words)
