"""The native core's recogniser, asked about texts."""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "native"
BUILD_TIMEOUT = 600  # seconds, with nothing built yet


class Oracle:
    """A process that knows GBNF."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def verdicts(self, grammar: str, texts: list[str]) -> str:
        """For each text 'y' belongs, 'b' is the beginning of one that does, 'n' neither, 's' takes too long; or why
        the grammar is refused."""
        assert self._process.stdin
        assert self._process.stdout
        for block in (grammar, str(len(texts)), *texts):
            data = block.encode()
            self._process.stdin.write(b"%d\n%s" % (len(data), data))
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().rstrip("\n")


@contextmanager
def oracle() -> Iterator[Oracle]:
    """Built if need be."""
    built = subprocess.run(
        ["make", "-s", f"-j{os.cpu_count() or 1}", "oracle"],
        cwd=NATIVE,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    process = subprocess.Popen([NATIVE / "build" / "oracle"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Oracle(process)
    finally:
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()


@cache
def shared_oracle() -> Oracle:
    """One for as long as the tests run."""
    context = oracle()
    found = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return found
