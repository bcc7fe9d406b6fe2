"""The probe: a libllama that dies is found out in a child process, once."""

import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from corosrv.engine import libllama, probe
from corosrv.engine.probe import Verdict
from corosrv.errors import ModelFailed
from tests.support.engines import packaged_model

pytestmark = pytest.mark.model

# Stands before libllama in the child: dies in a batch as a badly compiled one would, and counts the processes.
SHIM = r"""
#include <dlfcn.h>
#include <llama.h>
#include <csignal>
#include <cstdlib>
#include <fstream>

static bool is_fast;

template <typename Function>
static Function real(const char* name) {
  void* library = dlopen(std::getenv("SHIM_LIBLLAMA"), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

extern "C" llama_model* llama_model_load_from_file(const char* path, llama_model_params params) {
  std::ofstream(std::getenv("SHIM_LOG"), std::ios::app) << "load\n";
  is_fast = params.use_extra_bufts;
  return real<decltype(&llama_model_load_from_file)>("llama_model_load_from_file")(path, params);
}

extern "C" int32_t llama_decode(llama_context* context, llama_batch batch) {
  const char* mood = std::getenv("SHIM_MOOD");
  if (mood[0] == 'a' || (mood[0] == 'f' && is_fast)) std::raise(SIGILL);
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
    """Gives children a libllama that dies `always`, when loaded `fast`, or `never`; gives the log of its loads."""

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


def n_loads(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_one_that_lives_is_loaded_as_it_wants(libllama_that):
    log = libllama_that("never")

    assert probe.verdict(packaged_model()) is Verdict.FAST
    assert n_loads(log) == 1


def test_one_that_dies_is_loaded_safely_and_said_to_need_a_rebuild(libllama_that, caplog):
    log = libllama_that("fast")

    with caplog.at_level(logging.WARNING):
        found = probe.verdict(packaged_model())

    assert found is Verdict.SAFE
    assert n_loads(log) == 2
    (record,) = caplog.records
    assert "SIGILL" in record.getMessage()
    assert "pip install --force-reinstall" in record.getMessage()


@pytest.mark.parametrize("mood", ["never", "fast"])
def test_a_verdict_is_remembered(libllama_that, mood):
    log = libllama_that(mood)
    first = probe.verdict(packaged_model())
    before = n_loads(log)

    assert probe.verdict("/no/such/model.gguf") is first
    assert n_loads(log) == before


def test_one_that_dies_either_way_fails_the_model(libllama_that):
    libllama_that("always")

    with pytest.raises(ModelFailed, match=r"SIGILL.*rebuild it: "):
        probe.verdict(packaged_model())


def test_a_failure_is_not_remembered(libllama_that):
    log = libllama_that("always")
    with pytest.raises(ModelFailed):
        probe.verdict(packaged_model())

    libllama_that("never")

    assert probe.verdict(packaged_model()) is Verdict.FAST
    assert n_loads(log) == 3


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"x": "odd"}'])
def test_a_spoilt_memory_costs_one_more_probe(libllama_that, tmp_path, content):
    log = libllama_that("never")
    memory = tmp_path / "corosrv" / "probe.json"
    memory.parent.mkdir()
    memory.write_text(content)

    assert probe.verdict(packaged_model()) is Verdict.FAST
    assert n_loads(log) == 1


def test_a_memory_that_cannot_be_written_is_no_failure(libllama_that, tmp_path):
    libllama_that("never")
    (tmp_path / "corosrv").write_text("a file where the folder should be")

    assert probe.verdict(packaged_model()) is Verdict.FAST


def test_a_model_that_cannot_be_loaded_is_left_to_the_real_load(libllama_that, tmp_path):
    libllama_that("never")
    model = tmp_path / "bad.gguf"
    model.write_bytes(b"GGUF")

    assert probe.verdict(str(model)) is Verdict.FAST


def test_the_shim_dies_as_a_processor_would(libllama_that, monkeypatch):
    libllama_that("always")

    assert probe._try(packaged_model(), safe=True) == signal.Signals.SIGILL.name
    assert os.environ["SHIM_MOOD"] == "always"


def test_a_child_that_takes_too_long_is_tried_again(libllama_that, monkeypatch):
    log = libllama_that("never")
    run, waits = probe.run_process, iter([0.001, 100.0])
    monkeypatch.setattr(probe, "run_process", lambda command, timeout: run(command, next(waits)))

    assert probe.verdict(packaged_model()) is Verdict.FAST
    assert next(waits, None) is None, "both were asked for"
    assert n_loads(log) == 1


def test_a_time_out_is_no_crash_and_is_not_remembered(libllama_that, monkeypatch, tmp_path, caplog):
    libllama_that("never")
    monkeypatch.setattr(probe, "TIMEOUT", 0.001)

    with caplog.at_level(logging.WARNING):
        assert probe.verdict(packaged_model()) is Verdict.FAST

    assert "did not decode" in caplog.text
    assert not (tmp_path / "corosrv" / "probe.json").exists()
