"""Builds and runs the native core's own tests under ThreadSanitizer and AddressSanitizer, else plain."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from corosrv.models.engine import libllama

HERE = Path(__file__).parent
BUILD_TIMEOUT = 600  # seconds, on a slow machine with nothing built yet
RUN_TIMEOUT = 600  # of which a quiet machine of two processors takes 110


def run(*command: str, timeout: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=HERE, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
    )


def has_runtime(kind: str, folder: Path) -> bool:
    """Whether a program built with this sanitizer links and starts here."""
    compiler = os.environ.get("CXX", "g++")
    flags = run("make", "-s", f"flags-{kind}", timeout=30).stdout.split()
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text("int main() { return 0; }\n")
    built = run(compiler, *flags, str(source), "-o", str(program), timeout=60)
    return built.returncode == 0 and run(str(program), timeout=60).returncode == 0


BUILDS = pytest.mark.timeout(BUILD_TIMEOUT + RUN_TIMEOUT + 60)


def test_no_dump_of_threads_interrupts_a_build(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("faulthandler_timeout")) > BUILDS.args[0]


@BUILDS
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "address"])
def test_the_native_core_passes_its_tests(kind: str, tmp_path: Path) -> None:
    assert shutil.which("make"), "the native tests need make"
    if not has_runtime(kind, tmp_path):
        if kind == "thread":
            pytest.skip("the compiler has no working runtime for ThreadSanitizer")
        kind = "plain"
    jobs = os.cpu_count() or 1

    built = run("make", f"-j{jobs}", kind, timeout=BUILD_TIMEOUT)
    assert built.returncode == 0, built.stdout
    tested = run(f"build/{kind}/test_native", timeout=RUN_TIMEOUT)

    assert tested.returncode == 0, tested.stdout


@BUILDS
def test_no_fuzzer_finds_anything_in_a_second() -> None:
    assert shutil.which("make"), "the native tests need make"

    built = run("make", f"-j{os.cpu_count() or 1}", "fuzz", timeout=BUILD_TIMEOUT)
    assert built.returncode == 0, built.stdout
    fuzzed = run("make", "run-fuzz", "SECONDS=1", timeout=RUN_TIMEOUT)

    assert fuzzed.returncode == 0, fuzzed.stdout


def build_beside_ggml(target: str) -> None:
    assert shutil.which("make"), "the native tests need make"
    headers = libllama.headers() or pytest.skip("there is no ggml.h")
    places = f"LLAMA_INCLUDE={headers[0].parent}", f"LLAMA_LIB={libllama.folder()}"
    built = run("make", f"-j{os.cpu_count() or 1}", target, *places, timeout=BUILD_TIMEOUT)
    assert built.returncode == 0, built.stdout


@BUILDS
def test_the_kernels_pass_their_tests_inside_ggml() -> None:
    build_beside_ggml("ggml")

    tested = run("build/ggml/test_native", timeout=RUN_TIMEOUT)

    assert tested.returncode == 0, tested.stdout


@BUILDS
def test_no_thread_of_a_run_of_nodes_races_with_another(tmp_path: Path) -> None:
    if not has_runtime("thread", tmp_path):
        pytest.skip("the compiler has no working runtime for ThreadSanitizer")
    build_beside_ggml("ggml-thread")

    tested = run("build/ggml-thread/test_native", timeout=RUN_TIMEOUT)

    assert tested.returncode == 0, tested.stdout
