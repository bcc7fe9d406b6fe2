"""The build command of setup.py: compilers that run at the same time, and only for what has changed."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from setuptools import Distribution, Extension

ROOT = Path(__file__).parents[2]

# Stands for the C compiler: ends well only if a second one runs meanwhile, then hands over to the real one.
MEETING_COMPILER = """\
#!/bin/sh
case " $* " in *" -c "*)
  touch "{folder}/$$"
  for attempt in $(seq 100); do [ "$(ls "{folder}" | wc -l)" -ge 2 ] && exec {compiler} "$@"; sleep 0.1; done
  exit 1
esac
exec {compiler} "$@"
"""
# Writes down which file it compiles.
COUNTING_COMPILER = """\
#!/bin/sh
for word in "$@"; do case $word in *.c) echo "$word" >> "{folder}/compiled" ;; esac; done
exec {compiler} "$@"
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Builds an extension of the sources one.c and two.c; returns what the counting compiler compiled."""
    monkeypatch.syspath_prepend(str(ROOT / "native"))
    from parallel_build import ParallelBuild

    folder, compiler = tmp_path / "compilers", tmp_path / "compiler"
    folder.mkdir()
    (tmp_path / "shared.h").write_text("#define VALUE 1\n")
    (tmp_path / "one.c").write_text('#include "shared.h"\nint one(void) { return VALUE; }\n')
    (tmp_path / "two.c").write_text("int two(void) { return 2; }\n")
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    monkeypatch.chdir(tmp_path)

    def run(script: str = COUNTING_COMPILER, **options: list[str]) -> list[str]:
        compiler.write_text(script.format(folder=folder, compiler=shutil.which("cc")))
        compiler.chmod(0o755)
        extension = Extension("both", ["one.c", "two.c"], **options)
        command = ParallelBuild(Distribution({"name": "both", "ext_modules": [extension]}))
        command.build_lib = str(tmp_path / "built")
        command.ensure_finalized()
        (folder / "compiled").unlink(missing_ok=True)
        command.run()
        assert list((tmp_path / "built").glob("both*.so"))
        compiled = folder / "compiled"
        return sorted(compiled.read_text().split()) if compiled.exists() else []

    return run


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor compiles one file after the other")
def test_two_files_of_an_extension_are_compiled_at_the_same_time(build) -> None:
    build(MEETING_COMPILER)


def test_what_is_unchanged_is_not_compiled_again(build) -> None:
    assert build() == ["one.c", "two.c"]

    assert build() == []


@pytest.mark.parametrize(
    ("file", "text", "compiled"),
    [
        ("shared.h", "#define VALUE 2\n", ["one.c"]),  # which alone includes it
        ("two.c", "int two(void) { return 22; }\n", ["two.c"]),
    ],
)
def test_a_changed_file_compiles_what_is_made_of_it(build, tmp_path: Path, file: str, text: str, compiled: list[str]):
    build()

    (tmp_path / file).write_text(text)

    assert build() == compiled


def test_other_flags_compile_everything(build) -> None:
    build()

    assert build(extra_compile_args=["-DX"]) == ["one.c", "two.c"]


def test_a_file_that_did_not_compile_is_tried_again(build, tmp_path: Path) -> None:
    build()
    (tmp_path / "two.c").write_text("no C\n")
    with pytest.raises(Exception, match="compiler"):
        build()

    (tmp_path / "two.c").write_text("int two(void) { return 2; }\n")

    assert build() == ["two.c"]


def test_the_project_is_built_by_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from distutils.core import run_setup

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))

    command = run_setup("setup.py", ["--name"], stop_after="config").get_command_class("build_ext")

    assert "ParallelBuild" in [parent.__name__ for parent in command.__mro__]
