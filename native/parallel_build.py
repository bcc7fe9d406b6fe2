"""The `build_ext` command that setup.py names: compiles what has changed, on all processors."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import object_files
from setuptools import Extension
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """Runs as many compilers at once as this process may use processors; setuptools starts one after the other.

    Objects stay in `build/native`, also those of an editable installation, and are made again when a source, a header
    or a flag has changed; setuptools compares the extension with its sources alone, or compiles all of them.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = os.path.join("build", "native")

    def build_extension(self, ext: Extension) -> None:
        compiler = self.compiler
        compile_all, compile_file = compiler.compile, compiler._compile

        def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [path for paths in objects for path in paths]

        compiler.compile = compile_in_parallel
        compiler._compile = _compile_if_changed(compiler, compile_file)
        self.force = True  # asks for every object; which of them are compiled is decided here
        try:
            super().build_extension(ext)
        finally:
            compiler.compile, compiler._compile = compile_all, compile_file


def _compile_if_changed(compiler: Any, compile_file: Callable[..., None]) -> Callable[..., None]:
    """Wraps a compiler's method for one file: it is not called where the object is current."""

    def compile_if_changed(
        obj: str, src: str, ext: str, cc_args: list[str], extra_postargs: list[str], pp_opts: list[str]
    ) -> None:
        path = Path(obj)
        flags = [*extra_postargs, "-MMD", "-MF", str(object_files.list_file(path))]
        command = [*compiler.compiler_so, *getattr(compiler, "compiler_so_cxx", ()), src, *cc_args, *flags, *pp_opts]
        if not object_files.is_current(path, command):
            object_files.begin(path, command)
            compile_file(obj, src, ext, cc_args, flags, pp_opts)

    return compile_if_changed
