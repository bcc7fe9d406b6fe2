"""Programs in child processes, for what must not happen to the test run itself: forks, limits, crashes."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT = 60.0  # seconds


def python(program: str, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs a program, given as text, to its end."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, **options)


def output(program: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a program prints; fails with its words when it does not end well."""
    child = python(program, *arguments, env=env)
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def children(module: str) -> set[int]:
    """The processes of a module that this one has started, by id."""
    pids = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in pids if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()}
