"""The build command of setup.cfg: compilers that run at the same time."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from setuptools import Distribution, Extension

ROOT = Path(__file__).parents[2]

# Stands for the C compiler: ends well only if a second one runs meanwhile, then hands over to the real one.
COMPILER = """\
#!/bin/sh
case " $* " in *" -c "*)
  touch "{meeting}/$$"
  for attempt in $(seq 100); do [ "$(ls "{meeting}" | wc -l)" -ge 2 ] && exec {compiler} "$@"; sleep 0.1; done
  exit 1
esac
exec {compiler} "$@"
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor compiles one file after the other")
def test_two_files_of_an_extension_are_compiled_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "native"))
    from parallel_build import ParallelBuild

    meeting, compiler = tmp_path / "meeting", tmp_path / "compiler"
    meeting.mkdir()
    compiler.write_text(COMPILER.format(meeting=meeting, compiler=shutil.which("cc")))
    compiler.chmod(0o755)
    for name in ("one", "two"):
        (tmp_path / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    monkeypatch.chdir(tmp_path)
    extension = Extension("both", ["one.c", "two.c"])
    command = ParallelBuild(Distribution({"name": "both", "ext_modules": [extension]}))
    command.build_lib = command.build_temp = str(tmp_path / "built")
    command.ensure_finalized()

    command.run()

    assert list((tmp_path / "built").glob("both*.so"))
