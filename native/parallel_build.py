"""The `build_ext` command that setup.cfg names: compiles the sources of an extension on all processors."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """Runs as many compilers at once as this process may use processors; setuptools starts one after the other."""

    def build_extension(self, ext: Extension) -> None:
        compile_one_after_the_other = self.compiler.compile

        def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda source: compile_one_after_the_other([source], **options), sources)
                return [path for paths in objects for path in paths]

        self.compiler.compile = compile_in_parallel
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one_after_the_other
